package process

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/protocols/budget"
)

// accounts are the accounts of the process's memory: an allocation sized by user input is booked here first.
//
//	storage.memory_bytes ─┬─ 4/32  runtime      booked for good: code, stacks, garbage
//	                      ├─ 6/32  heads        rows not yet flushed
//	                      ├─ 6/32  series       names of series, their numbers and indexes
//	                      ├─ 2/32  caches       blocks of segments
//	                      ├─ 1/32  bodies       requests, inserts and frames of copies under way
//	                      ├─ 4/32  queries      at most 12/32
//	                      ├─ 1/32  compactions  and flushes
//	                      ├─ 1/32  kafka        records, where topics are read; no more than both bounds of them together
//	                      ├─ 0     scrape       of the process by itself
//	                      └─ the rest, 7/32 and more, for the first that asks
//
// The figures are floors: an account may hold that much whatever the others do. Heads, series, bodies and compactions have bounds of their own, which
// refuse (docs/limits.md), and are booked before they grow; queries and look-ups draw on the rest and are refused when there is none.
// Records of Kafka are booked when they are there, and less is read where their floor and half of the rest above it are full.
type accounts struct {
	process, heads, series, caches, bodies, queries, compactions, scrape *budget.Account
}

const (
	runtimeParts   = 4
	queryPartsMost = 12
)

// openAccounts shares the memory out; the registry shows it.
func openAccounts(bytes int64, registry prometheus.Registerer) (*accounts, error) {
	part := bytes / settings.MemoryParts
	a := &accounts{process: budget.New("process", bytes)}
	runtime, err := a.process.Child("runtime", budget.Share{})
	if err != nil {
		return nil, err
	}
	runtime.Force(runtimeParts * part)
	for _, child := range []struct {
		name        string
		floor, most int64
		to          **budget.Account
	}{
		{"heads", 6, 0, &a.heads},
		{"series", 6, 0, &a.series},
		{"caches", 2, 0, &a.caches},
		{"bodies", 1, 0, &a.bodies},
		{"queries", 4, queryPartsMost, &a.queries},
		{"compactions", 1, 0, &a.compactions},
		{"scrape", 0, 0, &a.scrape},
	} {
		if *child.to, err = a.process.Child(child.name, budget.Share{Floor: child.floor * part, Max: child.most * part}); err != nil {
			return nil, err
		}
	}
	a.process.Register(registry)
	return a, nil
}

// forKafka makes the account of records, of which so many bytes may be in flight, and as many wait in their topics.
func (a *accounts) forKafka(inFlightMax int64) (*budget.Account, error) {
	return a.process.Child("kafka", budget.Share{Floor: min(a.process.Share().Max/settings.MemoryParts, 2*inFlightMax)})
}

// followed is an account of memory that other parts bound; the bytes they hold are booked here, so that the rest is
// available to queries.
type followed struct {
	held  func() int64
	ahead booker
}

// booker is called with a size before something grows to that size, and at times with its present size. It is budget.Ahead.
type booker interface {
	Cover(held int64)
	Trim(held int64)
}

// quantumParts is the part of an account's floor that is booked ahead: more than the heads grow by in one insert.
const quantumParts = 24

// ahead follows a part that calls grown, with its size in units of each bytes, whenever it grows.
func ahead(account *budget.Account, each int64, held func() int64, onGrowth func(grown func(to int64))) followed {
	a := budget.NewAhead(account, account.Share().Floor/quantumParts)
	onGrowth(func(to int64) { a.Cover(each * to) })
	return followed{func() int64 { return each * held() }, a}
}

// followPeriod is the longest delay of giving memory back.
const followPeriod = 100 * time.Millisecond

// follow books the bytes that each holds until ctx ends.
func follow(ctx context.Context, all ...followed) error {
	for {
		for _, f := range all {
			held := max(0, f.held())
			if held > 0 {
				f.ahead.Cover(held) // held before it was followed
			}
			f.ahead.Trim(held)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(followPeriod):
		}
	}
}
