"""The border between the core and the wire: the only place that knows both.

Belongs here: conversion between core types and protocol messages, errors to gRPC status and
back, channel and server settings. Never here: retries, caching, decisions (client and broker).
"""
