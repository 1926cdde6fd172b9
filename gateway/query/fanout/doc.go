// Package fanout reads a table that is spread over many storage servers as if it were on one.
//
//	Select ─▶ ONE map ─▶ partitions that overlap ─▶ their leaders ─┬▶ n1: Select{1, 4, 7} ─┐ read ahead,
//	             ▲                                                 ├▶ n2: Select{2, 5}  ───┼─▶ merged by labels,
//	             │ Stale, no leader: a newer map or leader, again  └▶ n3: Select{3, 6}  ───┘   and by time
//	             └────────────────────────────────────────────────────┘
//
// One request goes by one map (C99, C129): when a server has a newer one, everything is asked again by that, until
// the first series was returned. Nothing here needs the coordination store: maps and leaders are the newest cached ones, and
// a request waits only a moment for a newer one when these fail. Missing partitions are an error; when the asker allows it, the
// answer goes without them, and a warning says so.
//
// A gateway that is cut off from the coordination store may have a map that is too old for the asked range (picture.go): it asks storage servers
// for a newer one, and where that leaves a doubt, warns or refuses.
//
// A series that lies on several servers is put together in time order. Two rows at one time exist only where a partition
// was split or merged and its rows are read from both sides. Only there are servers asked for the ranks of rows: the higher rank
// wins, as everywhere a value over a stale marker. Where a server of an older version returns none, the newer partition wins.
//
// Where several servers have copies of partitions, any that surely has every row is asked (copies.go, by the rules of follow.Copies): the copies of
// different partitions begin with different servers, the next is asked at once after an error, and beside a late one, or one that owes a sign of life. Answers of copies that may lack
// rows count only merged, as many as have all rows together.
//
// Divide has servers evaluate the steps of a plan for which one server has all rows of each series (stretch.go), by the same map and with the
// same second tries as Select. Copies evaluate too, if they surely have every row; none that may lack rows does. Rows for the other steps come with the
// evaluations where they are few.
//
// Invariants: I5 (so many series and rows are read ahead of the merge), I8.
package fanout
