#!/usr/bin/env bash
# Spark needs Java 17 or newer: installs it where it may, otherwise says what to run.
set -euo pipefail

java_major() { "$1" -version 2>&1 | sed -nE '1s/.*version "([0-9]+).*/\1/p'; }

have_java() {
  local java
  if [ -n "${JAVA_HOME:-}" ] && [ -x "$JAVA_HOME/bin/java" ]; then java=$JAVA_HOME/bin/java
  else java=$(command -v java) || return 1; fi
  [ "$(java_major "$java")" -ge 17 ] 2>/dev/null
}

have_java && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing a Java 17 runtime for Spark …"
  export DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes
  apt-get update -qq
  for package in openjdk-17-jre-headless default-jre-headless; do
    said=$(apt-get install -y -qq "$package" 2>&1) || continue
    hash -r
    have_java && exit 0
  done
  tail -n 5 <<<"$said" >&2
fi
cat >&2 <<'MSG'
Spark needs Java 17 or newer and none was found. Run:
    sudo apt-get install openjdk-17-jre-headless
(default-jre-headless on Debian 13 and newer), or point JAVA_HOME at one; then make again.
MSG
exit 1
