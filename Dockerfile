# The environment is made in the first stage and taken over whole: the image holds it and nothing of its making.
# By its digest, so that nobody can change it below us; `make digests` takes the newest.
ARG BASE=python:3.11-slim@sha256:9534e5a8e315485d4061ed659af0fd78a284c015f9b73661b41d6bab25604534
FROM ${BASE} AS native
WORKDIR /src
RUN apt-get update && apt-get install --yes --no-install-recommends cargo gcc libc6-dev
COPY requirements-native.lock ./
RUN python -m venv /opt/native
RUN /opt/native/bin/pip install --no-cache-dir --require-hashes -r requirements-native.lock
COPY native native
RUN /opt/native/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir=/opt/wheels ./native

FROM ${BASE} AS builder
WORKDIR /src
RUN python -m venv /opt/cagrpc
COPY requirements.lock requirements-ec2.lock ./
RUN /opt/cagrpc/bin/pip install --no-cache-dir --require-hashes -r requirements.lock -r requirements-ec2.lock
COPY pyproject.toml setup.py README.md LICENSE ./
COPY tools tools
COPY protos protos
COPY solver solver
COPY cagrpc cagrpc
COPY plugins plugins
# git is not copied: docker build --build-arg VERSION="$(.venv/bin/python -m setuptools_scm)" .
ARG VERSION
RUN SETUPTOOLS_SCM_PRETEND_VERSION=$VERSION /opt/cagrpc/bin/pip install --no-cache-dir --no-deps --no-build-isolation . ./plugins/ec2
COPY --from=native /opt/wheels /opt/wheels
RUN /opt/cagrpc/bin/pip install --no-cache-dir --no-deps /opt/wheels/*.whl
# What only the build needed, the tests of other projects, and a second client of Kubernetes: nothing imports them, and they
# are a quarter of all.
RUN find /opt/cagrpc/lib -type d \( -name tests -o -path "*/kubernetes/aio" \) -prune -exec rm -rf {} + \
    && /opt/cagrpc/bin/pip uninstall --quiet --yes grpcio-tools setuptools-scm vcs-versioning setuptools pip
# The planner's kernels, for every processor of the architecture: a container starts compiled, and writes nothing for it.
RUN /opt/cagrpc/bin/python -m solver.planning.warm_up
RUN install --directory --mode=0700 /var/lib/cagrpc

FROM ${BASE}
COPY --from=builder /opt/cagrpc /opt/cagrpc
# journal, simulated fleet and development certificates; 65532 is the usual id of nobody in particular
COPY --from=builder --chown=65532:65532 /var/lib/cagrpc /var/lib/cagrpc
ENV PATH=/opt/cagrpc/bin:$PATH PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /var/lib/cagrpc
VOLUME /var/lib/cagrpc
EXPOSE 8086 8087 8088
# in a container 127.0.0.1 is nobody else's; flags given to `docker run` come later and win
ENTRYPOINT ["cagrpc", "serve", "--state-dir", "/var/lib/cagrpc", "--provider-address", "0.0.0.0:8086", "--expander-address", "0.0.0.0:8087", "--http-address", "0.0.0.0:8088"]
