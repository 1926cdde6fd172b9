// Package ui is the page that a process shows to people: an explorer of its tables, and the state of the process and its
// cluster. The page is built by Vite from web/ into dist/, which is committed and embedded here, so that building Spillway
// needs no node. The page gets all its data from the HTTP API, with the credentials of its reader.
//
//	dist/ ──embedded──▶ GET /, /assets/…            the page: no data, so no credentials
//	Source ──Status───▶ GET /api/v1/status/cluster  tables, partitions, servers, topics, as JSON
//
// Invariant I5: an answer is as large as the map of partitions; a reader that does not want them says partitions=none,
// one that wants those of one table says table=<name>.
package ui
