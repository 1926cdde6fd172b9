package process

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/cmd/spillway/backups"
	"github.com/spillwaydb/spillway/storage/backup"
	"github.com/spillwaydb/spillway/storage/server"
)

// newsEvery is how often the answer reports progress.
const newsEvery = 200 * time.Millisecond

// backupPage makes a backup while the process serves. It ends when the client leaves.
func (d *door) backupPage(w http.ResponseWriter, r *http.Request) {
	var o backups.Order
	if !readOrder(w, r, &o, "a backup") {
		return
	}
	if o.BytesPerSecond < 0 || o.Keep < 0 {
		http.Error(w, "no number may be negative", http.StatusBadRequest)
		return
	}
	to, err := o.Place()
	if err == nil {
		err = d.cfg.apart("to", to)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	withNews(w, "a backup", &d.backingUp, func(progress func(backup.Progress)) backups.News {
		news, err := d.backUp(r.Context(), &o, to, progress)
		d.backups.ended(&news, err)
		if err != nil {
			news.Error = err.Error()
			d.log.Error("backup failed", "to", o.To, "error", err)
		} else {
			d.log.Info("backup made", "to", o.To, "name", news.Name, "segments", news.Progress.Segments, "bytes", news.Progress.Bytes, "copied_bytes", news.Progress.Copied, "missing", len(news.Missing))
		}
		return news
	})
}

// readOrder reads the body of an order, or answers why not.
func readOrder(w http.ResponseWriter, r *http.Request, o any, what string) bool {
	if ct := r.Header.Get("Content-Type"); ct != "application/json" { // a page in a browser cannot send that elsewhere unasked
		http.Error(w, "Content-Type must be application/json", http.StatusUnsupportedMediaType)
		return false
	}
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20))
	body.DisallowUnknownFields()
	if err := body.Decode(o); err != nil {
		http.Error(w, "not an order for "+what+": "+err.Error(), http.StatusBadRequest)
		return false
	}
	return true
}

// withNews answers with the progress of do, and at last with its outcome, unless another one is under way.
func withNews(w http.ResponseWriter, what string, busy *atomic.Bool, do func(progress func(backup.Progress)) backups.News) {
	if !busy.CompareAndSwap(false, true) {
		http.Error(w, what+" is under way", http.StatusConflict)
		return
	}
	free := sync.OnceFunc(func() { busy.Store(false) })
	defer free()
	w.Header().Set("Content-Type", "application/x-ndjson")
	tell := func(n backups.News) {
		_ = json.NewEncoder(w).Encode(n) // the request's context shows that a client left
		_ = http.NewResponseController(w).Flush()
	}
	_ = http.NewResponseController(w).Flush() // a client that gets nothing, and then an end, asks whether a process runs here
	last := time.Time{}
	news := do(func(p backup.Progress) {
		if now := time.Now(); now.Sub(last) >= newsEvery {
			last = now
			tell(backups.News{Progress: &p})
		}
	})
	free() // before the client reads the end: it may give the next order at once
	tell(news)
}

func (d *door) backUp(ctx context.Context, o *backups.Order, to backup.Place, progress func(backup.Progress)) (news backups.News, err error) {
	if d.behind.snapshot == nil {
		return d.backUpCluster(ctx, o, to, progress)
	}
	loan, err := d.borrow(ctx)
	if err != nil {
		return news, err
	}
	defer loan.Close()
	made := time.Now()
	snap, err := d.behind.snapshot(ctx)
	if err != nil {
		return news, err
	}
	defer snap.Close()
	if err := loan.Take(snap.Bytes()); err != nil {
		return news, err
	}
	res, err := backup.Write(ctx, vfs.Default, to, &snap.Content, made, backup.Settings{Link: o.Link, BytesPerSecond: o.BytesPerSecond, Program: d.cfg.Build.Version, Progress: progress})
	if err != nil {
		return news, err
	}
	news = backups.News{Name: res.Name, Missing: res.Missing, Progress: &res.Progress}
	if o.Keep > 0 {
		news.Removed, err = backup.Prune(ctx, to, snap.Content.Store, news.Name, o.Keep)
	}
	return news, err
}

// snapshotFunc is server.Snapshot.
type snapshotFunc func(context.Context) (*server.Snapshot, error)
