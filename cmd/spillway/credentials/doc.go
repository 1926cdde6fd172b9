// Package credentials has the commands that make what lets processes and clients in: certs, which writes certificates and lists of revoked ones
// for the processes of a cluster, and token, which makes tokens for clients and checks the files that name them.
package credentials
