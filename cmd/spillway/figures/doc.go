// Package figures computes what the status page and the commands show of a cluster from its maps and from the answers of its servers: rows on
// their way between servers, columns of the ring that get more than their share, by how much the partitions of each server grow, and what each column will get in the next hours.
//
// Its callers have the maps and the answers already; Hottest alone asks a server, for the labels of series.
package figures
