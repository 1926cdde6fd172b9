package s3

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/spillwaydb/spillway/protocols/fault"
)

const (
	lockName = "LOCK"
	// unlockMax bounds the removal of the lock.
	unlockMax = 30 * time.Second
	lockMax   = 4096 // bytes
)

// holder is the content of LOCK.
type holder struct {
	Store string    `json:"store"`
	Since time.Time `json:"since"` // for people
}

// Lock implements backup.Place.
func (b *Bucket) Lock(ctx context.Context, store string) (io.Closer, error) {
	now, err := json.Marshal(holder{store, time.Now().UTC()})
	if err != nil {
		return nil, fault.Wrap(err, fault.Internal, "lock")
	}
	for range tries {
		o := minio.PutObjectOptions{ContentType: "application/json", SendContentMd5: true, DisableMultipart: true}
		before, err := b.holder(ctx)
		switch {
		case fault.Is(err, fault.NotFound):
			o.SetMatchETagExcept("*") // If-None-Match: fails if another writer was quicker
		case err != nil:
			return nil, err
		case before.Store != store:
			return nil, b.held(before)
		}
		_, err = b.client.PutObject(ctx, b.bucket, b.key(lockName), bytes.NewReader(now), int64(len(now)), o)
		switch r := minio.ToErrorResponse(err); {
		case err == nil:
			return unlocker{b}, nil
		case r.StatusCode == http.StatusPreconditionFailed || r.StatusCode == http.StatusConflict: // look again
		case r.StatusCode == http.StatusNotImplemented:
			return nil, fault.Wrap(err, fault.Invalid, "%s: the store cannot write an object only if it does not exist (If-None-Match), which keeps two writers apart", b)
		default:
			return nil, b.failed(err, "lock", "")
		}
	}
	return nil, fault.Errorf(fault.Unavailable, "%s is in use by another backup", b)
}

func (b *Bucket) held(h holder) error {
	return fault.Errorf(fault.Unavailable, "%s is in use by a backup of store %s since %s; if its process is gone, remove the object %s",
		b, h.Store, h.Since.Format(time.RFC3339), b.key(lockName))
}

// holder reads LOCK. Errors: NotFound.
func (b *Bucket) holder(ctx context.Context) (h holder, err error) {
	r, _, err := b.Read(ctx, lockName)
	if err != nil {
		return h, err
	}
	defer r.Close()
	text, err := io.ReadAll(io.LimitReader(r, lockMax))
	if err != nil {
		return h, err
	}
	_ = json.Unmarshal(text, &h) // a lock that cannot be read is that of an unknown store
	return h, nil
}

// unlocker removes the lock.
type unlocker struct{ b *Bucket }

func (u unlocker) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), unlockMax)
	defer cancel()
	return u.b.Remove(ctx, lockName)
}
