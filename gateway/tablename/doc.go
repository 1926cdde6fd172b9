// Package tablename says which table a request is about, the same for every front door.
//
// The first of these that is there decides:
//
//	/t/<table>/…           what a Grafana data source URL or a remote_write URL holds
//	X-Spillway-Table       header
//	X-Scope-OrgID          header, as senders to Cortex and Mimir write it
//	?db=  ?bucket=         query parameters, as Influx clients write them
//	default                otherwise
//
// It reads nothing but strings, so net/http and fasthttp share it.
package tablename
