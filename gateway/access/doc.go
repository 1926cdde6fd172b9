// Package access identifies the sender of a request and its permissions: TLS, passwords and tokens for one port and two
// servers.
//
//	web-config file ──┐                     ┌─ TLS() ──────▶ handshake of every connection
//	certificates, CAs ┼─▶ load ─▶ state ─▶ ─┼─ Identify() ─▶ Identity ─▶ May(verb, table)
//	tokens file ──────┘   (all or nothing)  └─ Headers() ──▶ every answer
//
// The web-config file is the exporter-toolkit's, the one of Prometheus and its exporters: TLS, users with bcrypt
// passwords, headers. The tokens file is ours: tokens by their SHA-256, each with scopes of tables and verbs.
//
// Both files, and the certificates that they name, are read again when they change. They are applied together or not at
// all: if a file has become bad, the old state stays in force, and the fault is logged and counted. A reload can never
// switch TLS or access control off, because a file that is just being written looks like an empty one.
//
// Secrets are never logged, and never compared themselves: tokens by their digest, passwords by bcrypt in constant time.
// Memory is bounded whatever is sent (I5): caches of passwords and failed attempts have fixed sizes.
package access
