package surplus

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/storage/deliver"
	"github.com/spillwaydb/spillway/storage/partition"
)

// Ways are what handing over needs to know of the cluster.
type Ways interface {
	deliver.Ways
	// Map returns the newest map of a table at hand, nil if there is none, and the sequence number of the table's first map; 0: unknown.
	Map(table string) (m *topology.Map, begun uint64)
}

// Deps are the parts that Handover uses.
type Deps struct {
	Ways Ways
	// Partitions returns the placements of this server with frames set aside.
	Partitions func() []*partition.Partition
	Log        *slog.Logger
	Registerer prometheus.Registerer // nil: none
}

// Settings are numbers a user sets.
type Settings struct {
	// LookEvery is how often files are looked for, and those tried again that a leader did not accept. Default 2 s.
	LookEvery time.Duration
	// SendWithin bounds the handing over of a frame. Default 30 s.
	SendWithin time.Duration
}

// Handover hands over the files of one server.
type Handover struct {
	deps     Deps
	settings Settings
	out      *deliver.Deliverer
	metrics  *metrics
	// said are the files that need a person, by path, and when the log said so last. Owned by Run.
	said map[string]time.Time
}

// sayEvery is how often the log names a file that needs a person.
const sayEvery = time.Hour

// New makes a Handover; Run runs it.
func New(d Deps, s Settings) *Handover {
	s.LookEvery, s.SendWithin = cmp.Or(s.LookEvery, 2*time.Second), cmp.Or(s.SendWithin, 30*time.Second)
	return &Handover{deps: d, settings: s, out: deliver.New(d.Ways), metrics: newMetrics(d.Registerer), said: map[string]time.Time{}}
}

// Run hands over until ctx ends.
func (h *Handover) Run(ctx context.Context) error {
	t := time.NewTicker(h.settings.LookEvery)
	defer t.Stop()
	for {
		h.look(ctx)
		select {
		case <-ctx.Done():
			return h.out.Close()
		case <-t.C:
		}
	}
}

// look tries all files once, the oldest of a placement first.
func (h *Handover) look(ctx context.Context) {
	waiting, bytes, failed := 0, int64(0), map[string]bool{}
	for _, p := range h.deps.Partitions() {
		files, err := p.SurplusFiles()
		if err != nil {
			h.deps.Log.Warn("frames that were set aside cannot be listed; it is tried again", "partition", p.Identity().Partition, "error", err)
			continue
		}
		slices.SortFunc(files, func(a, b partition.Surplus) int {
			return cmp.Or(cmp.Compare(a.After.Epoch, b.After.Epoch), cmp.Compare(a.After.Seq, b.After.Seq), cmp.Compare(a.No, b.No))
		})
		for i := range files {
			if ctx.Err() != nil {
				return
			}
			if err := h.file(ctx, p, &files[i]); err != nil {
				waiting++
				bytes += files[i].Bytes
				failed[files[i].Path] = true
				h.failed(p, &files[i], err)
			}
		}
	}
	maps.DeleteFunc(h.said, func(path string, _ time.Time) bool { return !failed[path] })
	h.metrics.waiting.Set(float64(waiting))
	h.metrics.bytes.Set(float64(bytes))
}

// file hands one file over and removes it.
func (h *Handover) file(ctx context.Context, p *partition.Partition, s *partition.Surplus) error {
	at := p.Identity()
	m, _ := h.deps.Ways.Map(at.Table)
	if !places(m, &at) {
		return fault.Errorf(fault.Unavailable, "the map of table %q at hand does not have placement %d of partition %d", at.Table, at.Placement, at.Partition)
	}
	var frames, rows, deletions int
	err := p.ReadSurplus(s, func(f *frame.Frame) error {
		if f.Kind == frame.Delete {
			deletions++
			return nil
		}
		frames, rows = frames+1, rows+len(f.IDs)+len(f.Hists)
		return h.frame(ctx, m, f)
	})
	if err != nil {
		return err
	}
	if err := p.ForgetSurplus(s); err != nil {
		return err
	}
	h.metrics.rows.Add(float64(rows))
	h.metrics.deletions.Add(float64(deletions))
	h.deps.Log.Info("rows that only this copy had are at the partition's leader now", "table", at.Table, "partition", at.Partition, "after", s.After, "frames", frames, "rows", rows, "deletions_left_out", deletions)
	return nil
}

// places reports whether a map has a placement: rows of one that it does not have may be of a table that was dropped, where another one has its name now.
func places(m *topology.Map, at *partition.Identity) bool {
	if m == nil {
		return false
	}
	p, ok := m.ByID(at.Partition)
	return ok && slices.ContainsFunc(slices.Concat(p.Placements, p.Joining), func(pl topology.Placement) bool { return pl.ID == at.Placement })
}

func (h *Handover) frame(ctx context.Context, m *topology.Map, f *frame.Frame) error {
	ctx, cancel := context.WithTimeout(ctx, h.settings.SendWithin)
	defer cancel()
	scratch := deliver.Of(f)
	defer scratch.Put()
	expired, err := h.out.Rows(ctx, m.Table, m, peer.Inherit, scratch)
	h.metrics.expired.Add(float64(expired))
	return err
}

// failed reports a file that stays. One that cannot be read, or whose rows are refused for good, needs a person: that is an error once an hour, since it is tried again every two seconds.
func (h *Handover) failed(p *partition.Partition, s *partition.Surplus, err error) {
	h.metrics.failed.Inc()
	if errors.Is(err, context.Canceled) {
		return
	}
	level := slog.LevelDebug
	if fault.Is(err, fault.Corrupt) || fault.Is(err, fault.Invalid) || fault.Is(err, fault.TooLarge) {
		if at, ok := h.said[s.Path]; !ok || time.Since(at) >= sayEvery {
			level, h.said[s.Path] = slog.LevelError, time.Now()
		}
	}
	h.deps.Log.Log(context.Background(), level, "rows that only this copy has are not at the partition's leader yet; it is tried again", "table", p.Identity().Table, "partition", p.Identity().Partition, "file", s.Path, "error", err)
}
