"""Optional speed and memory optimisations; the plain path exists beside each."""
