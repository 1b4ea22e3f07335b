"""The methods, one file each. Import them from here: `resitta.methods.ResiTTA(eta=0.05)`."""

from resitta.methods.batch_norm import BatchNormAdapt
from resitta.methods.cmf import CMF
from resitta.methods.cofa import COFA
from resitta.methods.cotta import CoTTA
from resitta.methods.deyo import DeYO
from resitta.methods.eata import EATA
from resitta.methods.eta import ETA
from resitta.methods.lame import LAME
from resitta.methods.neo import NEO
from resitta.methods.note import NOTE
from resitta.methods.petta import PeTTA
from resitta.methods.pseudo_label import PseudoLabel
from resitta.methods.rdumb import RDumb
from resitta.methods.resitta import ResiTTA
from resitta.methods.roid import ROID
from resitta.methods.rotta import RoTTA
from resitta.methods.sar import SAR
from resitta.methods.source import Source
from resitta.methods.t3a import T3A
from resitta.methods.tent import Tent
from resitta.methods.tide import Tide
from resitta.methods.tribe import TRIBE
from resitta.methods.unmix import UnMix

__all__ = [
    "CMF",
    "COFA",
    "EATA",
    "ETA",
    "LAME",
    "NEO",
    "NOTE",
    "ROID",
    "SAR",
    "T3A",
    "TRIBE",
    "BatchNormAdapt",
    "CoTTA",
    "DeYO",
    "PeTTA",
    "PseudoLabel",
    "RDumb",
    "ResiTTA",
    "RoTTA",
    "Source",
    "Tent",
    "Tide",
    "UnMix",
]
