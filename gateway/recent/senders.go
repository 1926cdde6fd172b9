package recent

import (
	"cmp"
	"container/heap"
	"slices"
	"strings"
	"sync"
	"time"
)

// Bounds of the record of senders: some 4 MB in the worst case.
const (
	sendersTablesMax = 256
	sendersPerTable  = 16
	namesPerTable    = 1024
	namesKept        = 8192
	nameBytesMax     = 256
	sendersPerName   = 3
	freshNamesMax    = 512 // of one request
	identityBytesMax = 100
	agentBytesMax    = 120
	networkBytesMax  = 50
)

// Sender is a writer of rows: requests that look the same count together. It holds no secret.
type Sender struct {
	Protocol string `json:"protocol"`
	Identity string `json:"identity"` // the name of its token or user; "": the process asks for none
	Agent    string `json:"agent"`    // its User-Agent, or the topic of Kafka
	Network  string `json:"network"`  // where it is: the network around its address
}

// SenderUse is a sender with its writes to a table.
type SenderUse struct {
	Sender
	Requests  int64     `json:"requests"`
	Rows      int64     `json:"rows"`
	NewSeries int64     `json:"new_series"`
	PerMinute float64   `json:"new_series_per_minute"` // of them, in the last minute
	First     time.Time `json:"first"`
	Last      time.Time `json:"last"`

	number uint64 // of this table
	pace   pace
}

// NameUse is a metric name, and the senders of its series.
type NameUse struct {
	Name      string       `json:"name"`
	NewSeries int64        `json:"new_series"`
	PerMinute float64      `json:"new_series_per_minute"` // of them, in the last minute
	Last      time.Time    `json:"last"`                  // when the newest series came
	By        []SenderPart `json:"by"`                    // the last ones
}

// SenderPart is the share of one sender.
type SenderPart struct {
	Sender    int   `json:"sender"` // its place among the senders of the table
	NewSeries int64 `json:"new_series"`
}

// TableSenders are the senders of a table, the last one first.
type TableSenders struct {
	Table          string      `json:"table"`
	Senders        []SenderUse `json:"senders"`
	SendersLeftOut int64       `json:"senders_left_out"` // that are forgotten, since others came
	Names          []NameUse   `json:"names,omitempty"`  // with most new series first; only where one table is asked for
	NamesLeftOut   int64       `json:"names_left_out"`   // forgotten, or not recorded, since there are too many
}

// Fresh are the new series of one request, by metric name. The zero Fresh is empty.
type Fresh struct {
	series  int64
	names   map[string]int64
	leftOut int64
}

// Add counts a new series. The name is the caller's until Note returns.
func (f *Fresh) Add(name string) {
	f.series++
	if _, known := f.names[name]; !known && (len(f.names) >= freshNamesMax || len(name) > nameBytesMax) {
		f.leftOut++
		return
	}
	if f.names == nil {
		f.names = map[string]int64{}
	}
	f.names[name]++
}

// Senders are the last ones of each table of a process. A request costs one look among the senders of its table, a new series one among the names:
// nothing is done for a row. Safe for concurrent use; nil keeps nothing.
type Senders struct {
	mu struct {
		sync.Mutex
		tables  map[string]*tableSenders
		names   int   // of all tables
		leftOut int64 // tables that are forgotten
	}
}

// tableSenders is the record of a table. Guarded by the Senders' lock.
type tableSenders struct {
	last    time.Time
	numbers uint64 // given to senders so far
	senders []*SenderUse
	names   fewest
	byName  map[string]*nameUse
	TableSenders
}

// nameUse is a name in the heap of its table.
type nameUse struct {
	name   string
	series int64
	last   time.Time
	by     []part
	at     int // in the heap
	pace   pace
}

// pace counts the rows of the present minute of the clock and of the one before.
type pace struct {
	minute      int64 // since 1970
	now, before int64
}

func (p *pace) add(n int64, at time.Time) {
	*p = p.at(at)
	p.now += n
}

// at is the pace when a minute of the clock has come.
func (p pace) at(at time.Time) pace {
	switch m := at.Unix() / 60; {
	case m == p.minute+1:
		return pace{minute: m, before: p.now}
	case m > p.minute:
		return pace{minute: m}
	}
	return p
}

// perMinute is how many came in the 60 s before a time, as if those of the minute before had come evenly.
func (p pace) perMinute(at time.Time) float64 {
	p = p.at(at)
	return float64(p.now) + float64(p.before)*(1-float64(at.UnixNano()%int64(time.Minute))/float64(time.Minute))
}

// part names a sender by its number, so that one that is forgotten is not held.
type part struct {
	number uint64
	series int64
}

// NewSenders makes an empty list.
func NewSenders() *Senders {
	s := &Senders{}
	s.mu.tables = map[string]*tableSenders{}
	return s
}

// Note counts a request that wrote rows, or whose series were new. It keeps copies of its texts.
func (s *Senders) Note(table string, from Sender, rows int, fresh *Fresh, now time.Time) {
	if s == nil || rows == 0 && fresh.series == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tableLocked(table)
	t.last = now
	u := t.sender(from, now)
	u.Requests, u.Rows, u.NewSeries, u.Last = u.Requests+1, u.Rows+int64(rows), u.NewSeries+fresh.series, now
	u.pace.add(fresh.series, now)
	t.NamesLeftOut += fresh.leftOut
	for name, n := range fresh.names {
		s.nameLocked(t, name, n, u.number, now)
	}
}

// tableLocked finds the record of a table. Where there are too many the one that was written to least lately is forgotten.
func (s *Senders) tableLocked(table string) *tableSenders {
	if t := s.mu.tables[table]; t != nil {
		return t
	}
	if len(s.mu.tables) >= sendersTablesMax {
		oldest := ""
		for name, t := range s.mu.tables {
			if oldest == "" || t.last.Before(s.mu.tables[oldest].last) {
				oldest = name
			}
		}
		s.mu.names -= len(s.mu.tables[oldest].names)
		s.mu.leftOut++
		delete(s.mu.tables, oldest)
	}
	t := &tableSenders{byName: map[string]*nameUse{}}
	t.Table = strings.Clone(table)
	s.mu.tables[t.Table] = t
	return t
}

// sender finds a sender of the table. Where there are too many the one that wrote least lately is forgotten.
func (t *tableSenders) sender(from Sender, now time.Time) *SenderUse {
	from.Identity, from.Agent, from.Network = clip(from.Identity, identityBytesMax), clip(from.Agent, agentBytesMax), clip(from.Network, networkBytesMax)
	oldest := 0
	for i, u := range t.senders {
		if u.Sender == from {
			return u
		}
		if u.Last.Before(t.senders[oldest].Last) {
			oldest = i
		}
	}
	if len(t.senders) >= sendersPerTable {
		t.senders = slices.Delete(t.senders, oldest, oldest+1)
		t.SendersLeftOut++
	}
	t.numbers++
	u := &SenderUse{First: now, number: t.numbers, Sender: Sender{strings.Clone(from.Protocol), strings.Clone(from.Identity), strings.Clone(from.Agent), strings.Clone(from.Network)}}
	t.senders = append(t.senders, u)
	return u
}

// nameLocked counts new series of a name. Where there are too many names, the one with the fewest new series of the table that has most is forgotten.
func (s *Senders) nameLocked(t *tableSenders, name string, n int64, by uint64, now time.Time) {
	u := t.byName[name]
	if u == nil {
		if len(t.names) >= namesPerTable {
			s.forgetNameLocked(t)
		} else if s.mu.names >= namesKept {
			most := t
			for _, o := range s.mu.tables {
				if len(o.names) > len(most.names) {
					most = o
				}
			}
			s.forgetNameLocked(most)
		}
		u = &nameUse{name: strings.Clone(name)}
		t.byName[u.name] = u
		heap.Push(&t.names, u)
		s.mu.names++
	}
	u.series, u.last = u.series+n, now
	u.pace.add(n, now)
	u.credit(by, n)
	heap.Fix(&t.names, u.at)
}

func (s *Senders) forgetNameLocked(t *tableSenders) {
	u, _ := heap.Pop(&t.names).(*nameUse)
	delete(t.byName, u.name)
	t.NamesLeftOut++
	s.mu.names--
}

// credit counts series for a sender, which becomes the last of those of the name.
func (u *nameUse) credit(number uint64, n int64) {
	for i, p := range u.by {
		if p.number == number {
			n += p.series
			u.by = slices.Delete(u.by, i, i+1)
			break
		}
	}
	if len(u.by) >= sendersPerName {
		u.by = slices.Delete(u.by, 0, 1)
	}
	u.by = append(u.by, part{number, n})
}

// fewest is a heap of names, that with the fewest new series first.
type fewest []*nameUse

// Len implements heap.Interface.
func (f fewest) Len() int { return len(f) }

// Less implements heap.Interface.
func (f fewest) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(f[i].series, f[j].series), f[i].last.Compare(f[j].last)) < 0
}

// Swap implements heap.Interface.
func (f fewest) Swap(i, j int) {
	f[i], f[j] = f[j], f[i]
	f[i].at, f[j].at = i, j
}

// Push implements heap.Interface.
func (f *fewest) Push(x any) {
	u, _ := x.(*nameUse)
	u.at = len(*f)
	*f = append(*f, u)
}

// Pop implements heap.Interface.
func (f *fewest) Pop() any {
	last := len(*f) - 1
	u := (*f)[last]
	(*f)[last] = nil
	*f = (*f)[:last]
	return u
}

// SenderLists are the senders that a reader may see.
type SenderLists struct {
	Tables        []TableSenders `json:"tables"`
	TablesLeftOut int64          `json:"tables_left_out,omitempty"` // that are forgotten; for readers of all tables
}

// Lists gives the senders of the tables that shown names, with metric names where names says so.
func (s *Senders) Lists(now time.Time, shown func(table string) bool, names bool) SenderLists {
	out := SenderLists{Tables: []TableSenders{}}
	if s == nil {
		return out
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, t := range s.mu.tables {
		if shown(name) {
			out.Tables = append(out.Tables, t.shown(now, names))
		}
	}
	if shown("") {
		out.TablesLeftOut = s.mu.leftOut
	}
	slices.SortFunc(out.Tables, func(a, b TableSenders) int { return cmp.Compare(a.Table, b.Table) })
	return out
}

func (t *tableSenders) shown(now time.Time, names bool) TableSenders {
	out := t.TableSenders
	order := slices.Clone(t.senders)
	slices.SortStableFunc(order, func(a, b *SenderUse) int { return b.Last.Compare(a.Last) })
	place := map[uint64]int{}
	for i, u := range order {
		place[u.number] = i
		use := *u
		use.PerMinute = u.pace.perMinute(now)
		out.Senders = append(out.Senders, use)
	}
	if !names {
		return out
	}
	for _, u := range t.names {
		n := NameUse{Name: u.name, NewSeries: u.series, PerMinute: u.pace.perMinute(now), Last: u.last, By: []SenderPart{}}
		for _, p := range slices.Backward(u.by) {
			if i, known := place[p.number]; known {
				n.By = append(n.By, SenderPart{i, p.series})
			}
		}
		out.Names = append(out.Names, n)
	}
	slices.SortFunc(out.Names, func(a, b NameUse) int {
		return cmp.Or(cmp.Compare(b.NewSeries, a.NewSeries), cmp.Compare(a.Name, b.Name))
	})
	return out
}
