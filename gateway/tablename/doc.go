// Package tablename finds the table of a request, the same way for every front door.
//
// A request names its table in any of these places, or means the table "default":
//
//	/t/<table>/…           what a Grafana data source URL or a remote_write URL holds
//	X-Spillway-Table       header
//	X-Scope-OrgID          header, as senders to Cortex and Mimir write it
//	?db=  ?bucket=         query parameters, as Influx clients write them
//
// Where several places name one, and where one of them is repeated, all names must be the same: otherwise the request is
// refused. A proxy that sets the header would be bypassed if the path won over it, and one that checks the path if the
// header did.
//
// It reads nothing but strings, so net/http and fasthttp share it.
package tablename
