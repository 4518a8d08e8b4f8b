# The gateway as a small image: built with the toolchain's image, run without it, as a user of its own.
#
#   docker build -t staunch .
#   docker run -p 8080:8080 -e STAUNCH_UPSTREAM=http://api:3000 staunch
#   docker run -p 8080:8080 -v "$PWD/staunch.toml:/etc/staunch/staunch.toml:ro" staunch

FROM rust:1-bookworm AS build
WORKDIR /build
COPY . .
# What `--version` tells; a build context has no history to ask.
ARG STAUNCH_COMMIT=unknown
ENV STAUNCH_COMMIT=$STAUNCH_COMMIT
RUN cargo build --release --locked --bin staunch

FROM debian:bookworm-slim
# Whom rediss:// nodes are trusted through; mount another list over it, or name one in SSL_CERT_FILE.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin staunch
COPY --from=build /build/target/release/staunch /usr/local/bin/staunch
COPY deploy/docker/staunch.toml /etc/staunch/staunch.toml
USER 10001
EXPOSE 8080 9090
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s CMD ["staunch", "healthcheck", "--admin", "127.0.0.1:9090"]
ENTRYPOINT ["staunch"]
CMD ["run", "--config", "/etc/staunch/staunch.toml"]
