package peer

import (
	"context"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Storage is one storage server as a gateway sees it. All methods may be called from many goroutines.
//
// Errors carry their Kind: Stale (the server does not own the partition by its newer map: refresh and route again),
// Throttled (a bound is reached), Unavailable (fenced, read-only, stopping), Invalid, NotFound (no such table),
// Canceled, Corrupt.
type Storage interface {
	// OpenStream starts a stream of inserts into a table, with a dictionary of its own.
	OpenStream(ctx context.Context, table string) (Stream, error)

	// Select opens the series that match, in label order. The caller closes the set.
	Select(ctx context.Context, q *Select) (SeriesSet, error)

	// LabelNames and LabelValues answer from the series that have rows in the range and match. Sorted, no doubles.
	// Limit 0: no limit; otherwise at most that many, and truncated reports that there were more.
	LabelNames(ctx context.Context, q *Select, limit int) (names []string, truncated bool, err error)
	LabelValues(ctx context.Context, q *Select, name string, limit int) (values []string, truncated bool, err error)

	// Exemplars returns the exemplars in the range of series that match any of the matcher sets, by series in label
	// order, by time within. Matchers, LabelsOnly and the bounds of q are ignored.
	Exemplars(ctx context.Context, q *Select, sets [][]Matcher) ([]SeriesExemplars, error)

	// PutMetadata keeps descriptions of metric families; GetMetadata returns those of one metric or of all ("").
	PutMetadata(ctx context.Context, table string, rows []point.MetadataRow) error
	GetMetadata(ctx context.Context, table, metric string) ([]point.MetadataRow, error)

	// DeleteSeries removes the rows in [Lo, Hi] of matching series, durably, for every later read.
	DeleteSeries(ctx context.Context, q *Select) error

	// CleanTombstones asks for the partitions named, or all that the server leads, to be rewritten without deleted rows. It returns
	// before they are: the next rounds of maintenance do it. A restart forgets the request.
	CleanTombstones(ctx context.Context, q *Select) error

	// Stats describes the server's share of a table.
	Stats(ctx context.Context, table string, topN int) (*Stats, error)
}

// Stream is one gateway's ordered way into one server's table. Series must be defined before rows name them.
// Inserts may run concurrently; a Define happens before every Insert that is started after it returned.
type Stream interface {
	// Define assigns the stream's numbers to series. Repeating it for the same series is fine.
	Define(ctx context.Context, defs []Def) error

	// Insert hands over one partition's rows and returns when they are as safe as the level says. The columns stay the
	// caller's and are not read after the return. After an error the rows may or may not be kept (they are idempotent).
	// Its rows win over rows of earlier Inserts that were acked before this one began. A stamp too far ahead of the servers'
	// clocks is refused with an error for NeedsStamp, and no row is kept.
	Insert(ctx context.Context, in *Insert) error

	// Close forgets the dictionary.
	Close() error
}

// Def assigns a stream's number to a series.
type Def struct {
	ID     point.SeriesID
	Labels point.Labels
}

// Insert is one partition's share of a batch: row i is (IDs[i], Times[i], Values[i]). All times lie within the
// partition's bounds.
type Insert struct {
	Partition point.PartitionID
	MapSeq    uint64      // of the map by which it was routed
	Stamp     point.Stamp // rank of all its rows; the partition raises it above all earlier ones
	Level     point.Level
	Staging   *Staging // nil: an insert for the partition's leader

	IDs    []point.SeriesID
	Times  []point.Nanos
	Values []float64

	Hists     []point.HistRow
	Exemplars []point.ExemplarRow
}

// MatchType is how a Matcher compares.
type MatchType uint8

// The four comparisons of PromQL. Regular expressions are anchored at both ends.
const (
	MatchEqual MatchType = iota
	MatchNotEqual
	MatchRegexp
	MatchNotRegexp
)

// Matcher is one condition on a label; an absent label has the value "".
type Matcher struct {
	Type        MatchType
	Name, Value string
}

// Select names series and a range of time, both ends included.
type Select struct {
	Table      string
	Partitions []point.PartitionID // nil: every partition the server holds
	Lo, Hi     point.Nanos
	Matchers   []Matcher // all must hold

	// LabelsOnly asks for series without rows. A series is listed if it may have rows in the range.
	LabelsOnly bool

	// MapSeq is the transaction of the map by which Partitions were chosen, where all of them accept rows by that map; 0: the asker
	// does not say. A server with a newer map, in which one of them has heirs, answers Stale: the
	// asker would miss the heirs' rows.
	MapSeq uint64

	// MapNext is the first partition above all those of the asker's map; 0: the asker does not say. A server whose map has
	// such a partition with times in [Lo, Hi] answers Stale.
	MapNext point.PartitionID

	// Copies are the placements that may answer for Partitions. Servers of older versions answer as leaders alone.
	Copies Copies

	// Hold is the number that the asker drew for a hold of staged rows (StagedHolds); of StagedDeletes 0, or the one that the server has kept since. It travels in the place of MapSeq, which has no meaning there.
	Hold uint64

	// Ranks asks for the ranks of rows too, for use where other servers may have rows at the same times. A rank is exact for rows in
	// memory; of a chunk of a segment it is the highest.
	Ranks bool

	// Newest says that of each series only the newest row in [Lo, Hi] is looked at: a source may leave out those before it. It does not travel.
	Newest bool

	// Beside is how many other evaluations came with this one, in the same request. It does not travel.
	Beside int

	// Limit, with LabelsOnly, asks for the first so many series in label order; 0: all. Servers of older versions return all.
	Limit int

	// SeriesMax and SamplesMax end the select with TooLarge when exceeded; 0: no bound.
	SeriesMax, SamplesMax int
}

// SeriesSet returns series one by one in label order, merged over partitions, de-duplicated by rank.
type SeriesSet interface {
	// Next moves on. The Series returned before stays valid: it belongs to the caller.
	Next() bool
	At() *Series
	// Err is the error that ended Next early.
	Err() error
	// Close frees the memory of the set, also before its end.
	Close() error
}

// Series is one series' rows in time order, no time twice among floats and histograms together.
// Times may be shared between series; they are read-only.
type Series struct {
	Labels point.Labels
	Times  []point.Nanos
	Values []float64
	Hists  []Hist

	// Ranks are those of the floats, HistRanks those of the histograms, as many as there are rows. They are nil unless the
	// select asked for them and the server supports ranks.
	Ranks, HistRanks []point.Stamp
}

// Hist is a native histogram sample in the encoding of point.AppendHistogram.
type Hist struct {
	Time point.Nanos
	H    []byte
}

// SeriesExemplars is a series with its exemplars in time order. IDs in the rows mean nothing here.
type SeriesExemplars struct {
	Labels    point.Labels
	Exemplars []point.ExemplarRow
}

// Stats are the figures behind status/tsdb: the rows now in heads, and the largest groups of series.
type Stats struct {
	Series        uint64
	HeadRows      uint64
	SegmentRows   uint64
	SegmentBytes  uint64
	LabelPairs    uint64
	Partitions    int
	Segments      int
	MinTime       point.Nanos
	MaxTime       point.Nanos
	SeriesByName  []NameCount // __name__ → series
	ValuesByLabel []NameCount // label name → distinct values
	BytesByLabel  []NameCount // label name → bytes of its values
	SeriesByPair  []NameCount // name=value → series
	// ByPartition are the partitions held here, by id.
	ByPartition []PartitionStats
	// LostFound describes the server's lost+found, for all tables: files that nothing refers to; "": it is empty.
	LostFound string
	// Unmapped are tables with partitions or staged rows on the server that have no map, sorted, at most a hundred: the coordination store has lost them. Only where the table asked for
	// is "".
	Unmapped []string
	// Unreached are live servers that this one does not reach at their addresses, by name. Only where the table asked for is "". Builds from before do not say it.
	Unreached []Unreached
	// Fence is the last fence of the server's store within a day, by a process before this one. Only where the table asked for is "". Builds from before do not say it.
	Fence PastFence
	// Staged are the rows of the table that are staged, by server; those without any are left out.
	Staged []StagedStats
	// Capacity is what the server can accept, for all tables; zero where several servers are summed up.
	Capacity Capacity
}

// PastFence says when and why a store was fenced. The zero PastFence: it was not.
type PastFence struct {
	At  point.Nanos
	Why string
}

// Capacity is what a server can accept, as measured in the busy ones of its last minutes. The zero Capacity is not known: too few were busy.
type Capacity struct {
	RowsPerSecond float64 // as their leader; a copy is half of that work
	Minutes       int     // that were busy
}

// StagedCounter is a Storage that describes the rows staged on it without reading them, or its partitions.
type StagedCounter interface {
	// StagedStats returns Staged, and the times of the rows staged as MinTime and MaxTime; all else is zero.
	StagedStats(ctx context.Context, table string) (*Stats, error)
}

// StagedRanger is a Storage that knows the times of the rows staged on it without reading them.
type StagedRanger interface {
	// StagedTimes returns the times of the first and the last row of a table that a select of StagedRows may return now; lo > hi: it would return none. A row that is
	// outside, and was staged here before the call, is acked by the leader of its partition at level all. A server of an older build is Invalid.
	StagedTimes(ctx context.Context, table string) (lo, hi point.Nanos, err error)
}

// StagedStats are the rows of a table that are staged on a server (Staging). Times are unix nanoseconds.
type StagedStats struct {
	Server  string
	Frames  int
	Rows    int
	Bytes   int64       // encoded
	Later   int         // rows that are smeared, and not due yet
	Sole    int         // rows that this server alone holds now: it is the only holder, or no other one answers
	Oldest  point.Nanos // when the oldest frame came
	Overdue point.Nanos // when the oldest of those that wait for their leader could have been forwarded; 0: there is none
}

// PartitionStats is a server's share of one partition. MinTime and MaxTime mean nothing where Rows is 0.
type PartitionStats struct {
	ID               point.PartitionID
	Rows             uint64 // with doubles that no compaction has merged yet
	Bytes            uint64 // segments and rows in memory
	MinTime, MaxTime point.Nanos
	Damaged          string // which segment cannot be read and the remedy; "": all can
	Differs          string // which copies hold something else than this server, which leads it, and what; "": none that was compared
	Unflushed        string // why its rows cannot be written into a segment, and since when; "": the last flush went well
	// Transfers are the rows on their way from this server, which leads the partition. Nil: none.
	Transfers []Transfer
}

// Transfer is how far the rows of a partition are on their way from its leader.
type Transfer struct {
	To             string      // the server that is filled; "": its heirs, after a split or a merge
	Done, Total    uint64      // bytes, of segments; of a move to other partitions: those that the moved rows have here
	BytesPerSecond uint64      // mean since Since; 0: not known yet
	Since          point.Nanos // when this leader began
}

// NameCount is one line of a top list.
type NameCount struct {
	Name  string
	Count uint64
}
