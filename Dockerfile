# A service that adapts while it serves, on CPU:
#   docker build -t resitta .
#   docker run -p 127.0.0.1:8000:8000 -v resitta-state:/state -e RESITTA_TOKEN="$(openssl rand -hex 24)" resitta
# A model of your own: mount its file and name it, as in
#   docker run ... -v "$PWD/model.py:/model.py:ro" resitta /model.py:make --size 224 --state /state --host 0.0.0.0
FROM python:3.12-slim

RUN useradd --create-home resitta && mkdir /state && chown resitta /state
WORKDIR /app
# torch first and by itself: the layer is large, changes rarely, and comes from the index of CPU builds.
COPY constraints.txt ./
RUN pip install --no-cache-dir torch -c constraints.txt --index-url https://download.pytorch.org/whl/cpu
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY src src
RUN pip install --no-cache-dir ".[serve,demo]" -c constraints.txt

USER resitta
ENV RESITTA_CACHE=/state/cache
VOLUME /state
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD ["python", "-c", \
  "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/ready', timeout=3)"]
ENTRYPOINT ["resitta", "serve"]
CMD ["demo", "--state", "/state", "--host", "0.0.0.0"]
