package recent

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// refusalsKept bounds the kinds of refusals that are kept, reasonBytesMax the text of one.
const (
	refusalsKept   = 200
	reasonBytesMax = 500
	causeBytesMax  = 60
)

// Refusal is requests that were refused for the same cause, whole or in part.
type Refusal struct {
	Table    string    `json:"table"` // "": the sender showed no good credentials
	Protocol string    `json:"protocol"`
	Status   int       `json:"status"` // of HTTP
	Reason   string    `json:"reason"` // of the newest
	Requests int64     `json:"requests"`
	First    time.Time `json:"first"`
	Last     time.Time `json:"last"`
}

// Refusals are those of a process. Safe for concurrent use; nil keeps nothing.
type Refusals struct {
	mu struct {
		sync.Mutex
		list[*Refusal] // by Last
	}
}

// NewRefusals makes an empty list.
func NewRefusals() *Refusals {
	r := &Refusals{}
	r.mu.list = list[*Refusal]{max: refusalsKept, table: func(e *Refusal) string { return e.Table }}
	return r
}

// Note keeps a refusal; one of the same cause counts with those before it. It keeps copies of its texts.
func (r *Refusals) Note(table, protocol string, status int, reason string, now time.Time) {
	if r == nil {
		return
	}
	reason = strings.Clone(clip(reason, reasonBytesMax))
	c := cause(reason)
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, e := range r.mu.of {
		if e.Status == status && e.Table == table && e.Protocol == protocol && cause(e.Reason) == c {
			e.Requests, e.Last, e.Reason = e.Requests+1, now, reason
			r.mu.remove(i)
			r.mu.add(e)
			return
		}
	}
	r.mu.add(&Refusal{Table: strings.Clone(table), Protocol: protocol, Status: status, Reason: reason, Requests: 1, First: now, Last: now})
}

// cause is the beginning of a reason, before the parts that differ from request to request: names in quotes, numbers.
func cause(reason string) string {
	if i := strings.IndexAny(reason, "\"'`{0123456789"); i > 0 {
		reason = reason[:i]
	}
	return reason[:min(len(reason), causeBytesMax)]
}

// List gives the refusals of the tables that shown names, the newest first.
func (r *Refusals) List(shown func(table string) bool) []Refusal {
	out := []Refusal{}
	if r == nil {
		return out
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range slices.Backward(r.mu.of) {
		if shown(e.Table) {
			out = append(out, *e)
		}
	}
	return out
}
