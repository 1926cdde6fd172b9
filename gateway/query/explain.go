package query

import (
	"context"
	"slices"
	"sync"
)

// Explained collects how a query was evaluated. Safe for concurrent use.
type Explained struct {
	mu struct {
		sync.Mutex
		columns string
		parts   []ExplainedPart
		more    int
	}
}

// ExplainedPart is a part of a query that was evaluated, or read, at one place.
type ExplainedPart struct {
	// What: "evaluated" (by a server), "rows" (read by the gateway and evaluated there), or "unknown" (a server does not know the plan).
	What   string `json:"what"`
	Server string `json:"server,omitempty"` // "" for rows: of all servers
	// From and To are the first and the last step of a part that a server evaluated, and the range of time of rows; milliseconds.
	From    int64   `json:"from"`
	To      int64   `json:"to"`
	Series  int     `json:"series"`
	Rows    int     `json:"rows"`
	Bytes   int64   `json:"bytes,omitempty"` // of the server's answer
	Seconds float64 `json:"seconds"`
}

// explainedMax bounds the parts that are listed.
const explainedMax = 1000

type explainedKey struct{}

// WithExplained returns a context that collects how a query under it is evaluated.
func WithExplained(ctx context.Context) (context.Context, *Explained) {
	e := new(Explained)
	return context.WithValue(ctx, explainedKey{}, e), e
}

func explained(ctx context.Context) *Explained {
	e, _ := ctx.Value(explainedKey{}).(*Explained)
	return e
}

// take replaces what e has collected by what another one has.
func (e *Explained) take(other *Explained) {
	now := other.Show()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.columns, e.mu.parts, e.mu.more = now.Columns, now.Parts, now.More
}

// Explain adds a part to the explanation that ctx collects, if it collects one.
func Explain(ctx context.Context, p ExplainedPart) {
	e := explained(ctx)
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.mu.parts) == explainedMax {
		e.mu.more++
		return
	}
	e.mu.parts = append(e.mu.parts, p)
}

// explainColumns records how much of a query was evaluated over columns.
func explainColumns(ctx context.Context, extent string) {
	if e := explained(ctx); e != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.mu.columns = extent
	}
}

// Explanation is an explanation as it is shown.
type Explanation struct {
	Columns string          `json:"columns"` // whole, part, none or abandoned: how much was evaluated over columns; the engine did the rest
	Parts   []ExplainedPart `json:"parts"`
	More    int             `json:"more,omitempty"` // parts that are not listed
}

// Show returns the explanation so far.
func (e *Explained) Show() Explanation {
	e.mu.Lock()
	defer e.mu.Unlock()
	return Explanation{e.mu.columns, append([]ExplainedPart{}, slices.Clone(e.mu.parts)...), e.mu.more}
}
