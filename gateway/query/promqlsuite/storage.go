package promqlsuite

import (
	"context"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Backend is a fresh, empty storage under test.
type Backend struct {
	Source query.Source
	// Insert puts a batch into the table named Table and returns when it can be read.
	Insert func(ctx context.Context, b *point.Batch) error
	Close  func() error // nil: nothing to close
}

// Table is the table the scripts are run in.
const Table = "default"

// adapter is a storage.Storage over a Backend, as promqltest wants one.
type adapter struct {
	*query.Table
	backend Backend
}

func (a *adapter) StartTime() (int64, error) { return 0, nil }

func (a *adapter) Close() error {
	if a.backend.Close == nil {
		return nil
	}
	return a.backend.Close()
}

// Appender is the interface that will be removed; the scripts use AppenderV2.
func (a *adapter) Appender(context.Context) storage.Appender {
	panic("promqlsuite: the scripts append through AppenderV2")
}

func (a *adapter) AppenderV2(ctx context.Context) storage.AppenderV2 {
	return &appender{ctx: ctx, backend: a.backend, batch: point.GetBatch(point.NewDict(0))}
}

type appender struct {
	ctx     context.Context
	backend Backend
	batch   *point.Batch
}

func (a *appender) Append(_ storage.SeriesRef, ls labels.Labels, _, t int64, v float64, h *histogram.Histogram, fh *histogram.FloatHistogram, _ storage.AppendV2Options) (storage.SeriesRef, error) {
	l, err := pointLabels(ls)
	if err != nil {
		return 0, err
	}
	id := querytest.Intern(a.batch.Dict, l)
	switch ns := point.NanosOf(t); {
	case fh != nil:
		a.batch.Hists = append(a.batch.Hists, point.HistRow{ID: id, Time: ns, H: point.AppendFloatHistogram(nil, fh)})
	case h != nil:
		a.batch.Hists = append(a.batch.Hists, point.HistRow{ID: id, Time: ns, H: point.AppendHistogram(nil, h)})
	default:
		a.batch.Append(id, ns, v)
	}
	return storage.SeriesRef(id) + 1, nil
}

func pointLabels(ls labels.Labels) (point.Labels, error) {
	var b point.LabelsBuilder
	ls.Range(func(l labels.Label) { b.Add([]byte(l.Name), []byte(l.Value)) })
	return b.Labels()
}

func (a *appender) Commit() error {
	defer a.batch.Put()
	return a.backend.Insert(a.ctx, a.batch)
}

func (a *appender) Rollback() error {
	a.batch.Put()
	return nil
}

func (a *appender) SetOptions(*storage.AppendOptions) {}
