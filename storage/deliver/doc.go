// Package deliver gives rows that another server ordered to the leaders of their partitions, with the ranks they have: rows that were staged
// (storage/staging), and rows of partitions that have heirs (storage/unload).
//
//	frame ─▶ divide by the newest map ─▶ Insert at each leader, level all, Foreign
//	            │ times without a partition: Cover, and the caller tries again
//	            └ older rows of these than the table keeps, by the clock and by its newest partition: left out, counted
//
// A frame that comes twice, or late, changes nothing: its rows keep their rank.
package deliver
