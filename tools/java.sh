#!/usr/bin/env bash
# Spark needs Java 17 or newer: installs it where it may, otherwise says what to run.
set -euo pipefail

java_major() { "$1" -version 2>&1 | sed -nE '1s/.*version "([0-9]+).*/\1/p'; }

if [ -n "${JAVA_HOME:-}" ] && [ -x "$JAVA_HOME/bin/java" ]; then java=$JAVA_HOME/bin/java
else java=$(command -v java || true); fi
if [ -n "$java" ] && [ "$(java_major "$java")" -ge 17 ] 2>/dev/null; then exit 0; fi

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing a Java 17 runtime for Spark …"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq openjdk-17-jre-headless >/dev/null \
    || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq default-jre-headless >/dev/null
else
  cat >&2 <<'MSG'
Spark needs Java 17 or newer and none was found. Run:
    sudo apt-get install openjdk-17-jre-headless
(or point JAVA_HOME at one), then make again.
MSG
  exit 1
fi
