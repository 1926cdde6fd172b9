package s3_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/backup"
	"github.com/spillwaydb/spillway/storage/backup/s3"
)

// store is an S3 server with a bucket "bkt". Each request passes through before, which may answer it and return true.
func store(t *testing.T, before func(http.ResponseWriter, *http.Request) bool) s3.Settings {
	t.Helper()
	mem := s3mem.New()
	if err := mem.CreateBucket("bkt"); err != nil {
		t.Fatal(err)
	}
	inner := gofakes3.New(mem, gofakes3.WithHostBucket(false)).Server()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if before == nil || !before(w, r) {
			inner.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(srv.Close)
	return s3.Settings{Endpoint: srv.URL, Region: "us-east-1", AccessKey: "AK", SecretKey: "SK"}
}

func bucket(t *testing.T, at string, set s3.Settings) *s3.Bucket {
	t.Helper()
	b, err := s3.Open(at, set)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func random(n int) []byte {
	out, r := make([]byte, n), rand.New(rand.NewPCG(1, 2))
	for i := range out {
		out[i] = byte(r.Uint32())
	}
	return out
}

// TestPlaces: a bucket and a directory do the same.
func TestPlaces(t *testing.T) {
	set := store(t, nil)
	for name, at := range map[string]backup.Place{
		"bucket": bucket(t, "s3://bkt", set),
		"prefix": bucket(t, "s3://bkt/deep/prefix/", set),
		"dir":    backup.Dir{FS: vfs.NewMem(), Path: "bk"},
	} {
		t.Run(name, func(t *testing.T) { place(t, at) })
	}
}

func place(t *testing.T, at backup.Place) {
	ctx := t.Context()
	unlock, err := at.Lock(ctx, "store one")
	if err != nil {
		t.Fatal(err)
	}
	if files, err := at.List(ctx, "segments"); err != nil || len(files) != 0 {
		t.Errorf("at first: %v %v", files, err)
	}
	contents := map[string][]byte{"segments/a": random(5), "segments/large": random(17<<20 + 3), "b.backup": random(100)}
	for name, b := range contents {
		if err := at.Put(ctx, name, int64(len(b)), bytes.NewReader(b)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	files, err := at.List(ctx, "segments")
	if err != nil || len(files) != 2 || files["large"] != 17<<20+3 || files["a"] != 5 {
		t.Errorf("list: %v %v", files, err)
	}
	if files, err := at.List(ctx, ""); err != nil || files["b.backup"] != 100 || files["a"] != 0 {
		t.Errorf("list of the top: %v %v", files, err)
	}
	for name, want := range contents {
		if got := read(t, at, name); !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes of %d, or others", name, len(got), len(want))
		}
	}
	for _, size := range []int64{10, 17 << 20} {
		broken := io.MultiReader(bytes.NewReader(random(int(size)-1)), failing{})
		if err := at.Put(ctx, "segments/half", size, broken); err == nil {
			t.Errorf("a file of %d bytes whose source failed was written", size)
		}
	}
	if _, _, err := at.Read(ctx, "segments/half"); !fault.Is(err, fault.NotFound) {
		t.Errorf("a file whose source failed: %v", err)
	}
	if err := errors.Join(at.Remove(ctx, "segments/a"), at.Remove(ctx, "segments/a"), at.RemovePartial(ctx), at.Sync("segments"), at.Sync("")); err != nil {
		t.Error(err)
	}
	if files, err := at.List(ctx, "segments"); err != nil || len(files) != 1 {
		t.Errorf("after one was removed: %v %v", files, err)
	}
	if _, err := at.Lock(ctx, "store two"); !fault.Is(err, fault.Unavailable) {
		t.Errorf("two stores have the lock: %v", err)
	}
	if err := unlock.Close(); err != nil {
		t.Fatal(err)
	}
	unlock, err = at.Lock(ctx, "store two")
	if err != nil {
		t.Fatal(err)
	}
	if err := unlock.Close(); err != nil {
		t.Fatal(err)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("the disk is gone") }

func read(t *testing.T, at backup.Place, name string) []byte {
	t.Helper()
	r, size, err := at.Read(t.Context(), name)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil || int64(len(b)) != size {
		t.Fatalf("%s: %d of %d bytes, %v", name, len(b), size, err)
	}
	return b
}

// TestAProcessThatDiedLocksOutOnlyOthers: its store goes on, another store's backup says what to do.
func TestAProcessThatDiedLocksOutOnlyOthers(t *testing.T) {
	set := store(t, nil)
	at := bucket(t, "s3://bkt/p", set)
	if _, err := at.Lock(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	if _, err := at.Lock(t.Context(), "two"); err == nil || !strings.Contains(err.Error(), "remove the object p/LOCK") {
		t.Errorf("another store: %v", err)
	}
	unlock, err := at.Lock(t.Context(), "one")
	if err != nil {
		t.Fatalf("the same store: %v", err)
	}
	if err := unlock.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestARestoreGoesOnWhereTheConnectionBroke cuts each answer short.
func TestARestoreGoesOnWhereTheConnectionBroke(t *testing.T) {
	var gets atomic.Int32
	var from int
	content := random(100_000)
	set := store(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/x") {
			return false
		}
		gets.Add(1)
		from = 0
		if h := r.Header.Get("Range"); h != "" {
			from, _ = strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(h, "bytes="), "-"))
			w.Header().Set("Content-Range", "bytes "+strconv.Itoa(from)+"-99999/100000")
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(content)-from))
		w.Header().Set("ETag", `"e"`)
		w.Header().Set("Last-Modified", "Sun, 22 Nov 2026 07:00:00 GMT")
		if from > 0 {
			w.WriteHeader(http.StatusPartialContent)
		}
		_, _ = w.Write(content[from:min(from+30_000, len(content))])
		return true // net/http closes the connection, since bytes are missing
	})
	at := bucket(t, "s3://bkt", set)
	if err := at.Put(t.Context(), "x", int64(len(content)), bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	if got := read(t, at, "x"); !bytes.Equal(got, content) || gets.Load() != 4 {
		t.Errorf("%d bytes by %d requests", len(got), gets.Load())
	}
}

// TestPartsOfAKilledBackupAreRemoved: they cost money, and no listing shows them.
func TestPartsOfAKilledBackupAreRemoved(t *testing.T) {
	set := store(t, nil)
	u, err := url.Parse(set.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	core, err := minio.NewCore(u.Host, &minio.Options{Creds: credentials.NewStaticV4("AK", "SK", ""), Region: "us-east-1"})
	if err != nil {
		t.Fatal(err)
	}
	uploads := func() int {
		l, err := core.ListMultipartUploads(t.Context(), "bkt", "p/", "", "", "", 100)
		if err != nil {
			t.Fatal(err)
		}
		return len(l.Uploads)
	}
	for _, key := range []string{"p/segments/0123456789abcdef-1.seg", "p/films/1.ts", "p/segments/film"} {
		id, err := core.NewMultipartUpload(t.Context(), "bkt", key, minio.PutObjectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := core.PutObjectPart(t.Context(), "bkt", key, id, 1, bytes.NewReader(random(1000)), 1000, minio.PutObjectPartOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if n := uploads(); n != 3 {
		t.Fatalf("%d uploads", n)
	}
	if err := bucket(t, "s3://bkt/p", set).RemovePartial(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := uploads(); n != 2 { // those of other programs
		t.Errorf("%d uploads are left", n)
	}
}

// TestMistakesAreNamed: the first mistakes of a person.
func TestMistakesAreNamed(t *testing.T) {
	for _, c := range []struct {
		at   string
		set  s3.Settings
		want string
	}{
		{"s3://", s3.Settings{}, "s3://BUCKET"},
		{"s3://bkt/../c", s3.Settings{}, "s3://BUCKET"},
		{"s3://bkt?x=1", s3.Settings{}, "s3://BUCKET"},
		{"s3://bkt", s3.Settings{Endpoint: "minio:9000"}, "the endpoint"},
		{"s3://bkt", s3.Settings{Endpoint: "http://h/path"}, "the endpoint"},
		{"s3://bkt", s3.Settings{AccessKey: "AK"}, "go together"},
		{"s3://bkt", s3.Settings{AccessKey: "AK", SecretKey: "SK", CA: "no certificate"}, "no certificate"},
	} {
		if _, err := s3.Open(c.at, c.set); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %+v: %v", c.at, c.set, err)
		}
	}
	if _, err := bucket(t, "s3://none", store(t, nil)).List(t.Context(), ""); err == nil || !strings.Contains(err.Error(), `there is no bucket "none"`) {
		t.Errorf("no bucket: %v", err)
	}
	refusing := store(t, func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `<Error><Code>SignatureDoesNotMatch</Code><Message>wrong</Message></Error>`)
		return true
	})
	if _, err := bucket(t, "s3://bkt", refusing).Lock(context.Background(), "one"); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "refuses the credentials") {
		t.Errorf("wrong keys: %v", err)
	}
}
