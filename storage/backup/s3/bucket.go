package s3

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/backup"
)

// Bucket is a backup.Place.
type Bucket struct {
	// Constant after Open.
	client *minio.Client
	bucket string
	prefix string // without slashes at its ends
}

const (
	// tries is how often a request is sent before it fails, with pauses that grow to a second.
	tries = 5
	// partBytes is the size of the parts of large files. A stream keeps one in memory.
	partBytes = 16 << 20
	// partsMax is the highest number of parts of an object.
	partsMax = 10_000
	// streams is the number of files that are under way at once: the answers of a bucket need tens of milliseconds.
	streams = 4
)

func (b *Bucket) String() string { return Scheme + path.Join(b.bucket, b.prefix) }

// Streams implements backup.Place.
func (b *Bucket) Streams() int { return streams }

func (b *Bucket) key(name string) string { return path.Join(b.prefix, name) }

// folder is the beginning of the keys of a folder's objects.
func (b *Bucket) folder(name string) string {
	if key := b.key(name); key != "" {
		return key + "/"
	}
	return ""
}

// failed gives an error of the store its kind.
func (b *Bucket) failed(err error, doing, name string) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	where := b.String()
	if name != "" {
		where += "/" + name
	}
	switch r := minio.ToErrorResponse(err); r.Code {
	case minio.NoSuchKey:
		return fault.Errorf(fault.NotFound, "%s is missing", where)
	case minio.NoSuchBucket:
		return fault.Errorf(fault.Unavailable, "there is no bucket %q: make it first", b.bucket)
	case minio.AccessDenied, "InvalidAccessKeyId", "SignatureDoesNotMatch", "AuthorizationHeaderMalformed", "ExpiredToken", "InvalidToken", "XAdminUserNotFound": // the last is versitygw's, for a key that it does not know
		return fault.Wrap(err, fault.Invalid, "%s %s: the store refuses the credentials", doing, where)
	}
	return fault.Wrap(err, fault.Unavailable, "%s %s", doing, where)
}

// List implements backup.Place.
func (b *Bucket) List(ctx context.Context, folder string) (map[string]int64, error) {
	ctx, cancel := context.WithCancel(ctx) // ends the listing when it is left early
	defer cancel()
	out, prefix := map[string]int64{}, b.folder(folder)
	for o := range b.client.ListObjects(ctx, b.bucket, minio.ListObjectsOptions{Prefix: prefix}) {
		if o.Err != nil {
			return nil, b.failed(o.Err, "list", folder)
		}
		if name := strings.TrimPrefix(o.Key, prefix); name != "" && !strings.HasSuffix(name, "/") {
			out[name] = o.Size
		}
	}
	return out, ctx.Err()
}

// Put implements backup.Place.
func (b *Bucket) Put(ctx context.Context, name string, size int64, r io.Reader) error {
	o := minio.PutObjectOptions{ContentType: "application/octet-stream", SendContentMd5: true, DisableContentSha256: true} // the header with the MD5 is signed
	if size <= partBytes {                                                                                                 // in memory, so that it can be sent again
		buf := make([]byte, size)
		if _, err := io.ReadFull(r, buf); err != nil {
			return fault.Wrap(err, fault.Unavailable, "read what should be %s", name)
		}
		r = bytes.NewReader(buf)
		o.DisableMultipart = true
	} else {
		o.PartSize = uint64(max(partBytes, (size+partsMax-1)/partsMax))
	}
	_, err := b.client.PutObject(ctx, b.bucket, b.key(name), r, size, o)
	return b.failed(err, "write", name)
}

// Remove implements backup.Place.
func (b *Bucket) Remove(ctx context.Context, name string) error {
	err := b.client.RemoveObject(ctx, b.bucket, b.key(name), minio.RemoveObjectOptions{})
	if minio.ToErrorResponse(err).Code == minio.NoSuchKey {
		return nil
	}
	return b.failed(err, "remove", name)
}

// RemovePartial implements backup.Place: the store keeps the parts of uploads that ended with their process.
func (b *Bucket) RemovePartial(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for u := range b.client.ListIncompleteUploads(ctx, b.bucket, b.folder(""), true) {
		switch minio.ToErrorResponse(u.Err).Code {
		case "":
		case minio.NoSuchUpload, minio.NotImplemented, "MethodNotAllowed": // no uploads, or a store that does not list uploads
			return nil
		default:
			return b.failed(u.Err, "list uploads of", "")
		}
		name := strings.TrimPrefix(u.Key, b.folder(""))
		if !backup.Ours(name) {
			continue // of another program
		}
		if err := b.client.RemoveIncompleteUpload(ctx, b.bucket, u.Key); err != nil {
			return b.failed(err, "remove an upload of", name)
		}
	}
	return ctx.Err()
}

// Sync implements backup.Place: an object that was written is durable.
func (b *Bucket) Sync(string) error { return nil }

// Read implements backup.Place.
func (b *Bucket) Read(ctx context.Context, name string) (io.ReadCloser, int64, error) {
	r := &reader{ctx: ctx, b: b, name: name}
	st, err := b.client.StatObject(ctx, b.bucket, b.key(name), minio.StatObjectOptions{})
	if err != nil {
		return nil, 0, b.failed(err, "read", name)
	}
	r.size, r.etag = st.Size, st.ETag
	return r, st.Size, nil
}

// reader reads an object, and goes on where a connection broke.
type reader struct {
	ctx  context.Context // of the copy that it serves
	b    *Bucket
	name string
	size int64
	etag string

	at     int64
	body   io.ReadCloser // nil: none
	broken int           // connections that broke since the last byte came
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	for {
		if r.at >= r.size {
			return 0, io.EOF
		}
		n, err := r.read(p[:min(int64(len(p)), r.size-r.at)])
		r.at += int64(n)
		if n > 0 {
			r.broken = 0
			return n, nil
		}
		if err == nil {
			continue
		}
		if cerr := r.ctx.Err(); cerr != nil {
			return 0, cerr
		}
		r.drop()
		if r.broken++; r.broken >= tries || minio.ToErrorResponse(err).StatusCode == http.StatusPreconditionFailed {
			return 0, r.b.failed(err, "read", r.name)
		}
		select {
		case <-r.ctx.Done():
		case <-time.After(time.Duration(r.broken) * 200 * time.Millisecond):
		}
	}
}

func (r *reader) read(p []byte) (int, error) {
	if r.body == nil {
		o := minio.GetObjectOptions{}
		if r.at > 0 {
			if err := errors.Join(o.SetRange(r.at, 0), o.SetMatchETag(r.etag)); err != nil {
				return 0, err
			}
		}
		core := minio.Core{Client: r.b.client}
		body, _, _, err := core.GetObject(r.ctx, r.b.bucket, r.b.key(r.name), o)
		if err != nil {
			return 0, err
		}
		r.body = body
	}
	n, err := r.body.Read(p)
	if err == io.EOF && r.at+int64(n) < r.size {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func (r *reader) drop() {
	if r.body != nil {
		_ = r.body.Close() // nothing was written
		r.body = nil
	}
}

// Close implements io.Closer.
func (r *reader) Close() error {
	r.drop()
	return nil
}
