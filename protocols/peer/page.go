package peer

// PagedSet is a SeriesSet that many goroutines can read at a time, each into memory that is used again. A set is read
// this way or by Next, not both.
type PagedSet interface {
	SeriesSet
	// Pager returns a reader of pages of at most seriesMax series for one goroutine. Close it before the set. Safe for
	// concurrent use.
	Pager(seriesMax int) Pager
}

// Pager reads pages of a set. Each page goes to the pager that asks first. For one goroutine.
type Pager interface {
	// Next returns a page, valid until it is called again; ok is false when there are no more. After an error the set has
	// no more pages.
	Next() (p Page, ok bool, err error)
	Close()
}

// Page is series that follow each other in label order.
type Page struct {
	Number int // from 0, in label order
	Series []Series
	Last   bool // no page follows
}
