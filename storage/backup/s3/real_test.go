package s3_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/backup/s3"
)

// realServer is the address of the running server, for requests by the name of a bucket's host, which no resolver knows.
var realServer atomic.Value

// TestMain has requests to other hosts than this one go to the running server, as they would by its DNS names. The proxy of a process is set before its first request.
func TestMain(m *testing.M) {
	if os.Getenv("S3_SERVER") == "" {
		os.Exit(m.Run())
	}
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = "http", realServer.Load().(string)
		r.Out.Host = r.In.Host // it is signed
	}})
	if err := os.Setenv("HTTP_PROXY", proxy.URL); err != nil {
		panic(err)
	}
	code := m.Run()
	proxy.Close()
	os.Exit(code)
}

const (
	realKey, realSecret = "AKSPILLWAY", "a secret that is long enough"
	realDomain          = "s3.spillway.test"
)

// startReal starts versitygw on a directory, which checks the signature of every request, with a bucket "bkt".
func startReal(t *testing.T) s3.Settings {
	t.Helper()
	bin := os.Getenv("S3_SERVER")
	if bin == "" {
		t.Skip("S3_SERVER names no program of versitygw: `make test-s3` builds one")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	cmd := exec.Command(bin, "--port", addr, "--virtual-domain", realDomain, "posix", t.TempDir())
	cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY_ID="+realKey, "ROOT_SECRET_ACCESS_KEY="+realSecret, "ROOT_ACCESS_KEY="+realKey, "ROOT_SECRET_KEY="+realSecret)
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(said.String())
		}
	})
	realServer.Store(addr)
	client, err := minio.New(realDomain, &minio.Options{Creds: credentials.NewStaticV4(realKey, realSecret, ""), Region: "us-east-1"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	for {
		err := client.MakeBucket(ctx, "bkt", minio.MakeBucketOptions{})
		if err == nil || minio.ToErrorResponse(err).Code == "BucketAlreadyOwnedByYou" {
			break
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	return s3.Settings{Endpoint: "http://" + realDomain, Region: "us-east-1", AccessKey: realKey, SecretKey: realSecret}
}

// TestAServerThatChecksSignatures does with a real server what TestPlaces does with a fake one, by the path and by the host name of the bucket, and lists more objects than a
// page has; wrong keys are named, and parts of an upload that was left are removed.
func TestAServerThatChecksSignatures(t *testing.T) {
	set := startReal(t)
	for name, virtual := range map[string]bool{"path": false, "host": true} {
		t.Run(name, func(t *testing.T) {
			set := set
			set.VirtualHost = virtual
			place(t, bucket(t, "s3://bkt/"+name, set))
		})
	}
	ctx := t.Context()
	t.Run("many", func(t *testing.T) {
		at := bucket(t, "s3://bkt/many", set)
		const n = 1100
		for i := range n {
			if err := at.Put(ctx, fmt.Sprintf("segments/%04d.seg", i), 2, strings.NewReader("ab")); err != nil {
				t.Fatal(err)
			}
		}
		if files, err := at.List(ctx, "segments"); err != nil || len(files) != n {
			t.Errorf("%d objects of %d are listed, %v", len(files), n, err)
		}
	})
	t.Run("keys", func(t *testing.T) {
		for _, wrong := range []s3.Settings{{AccessKey: realKey, SecretKey: "another secret"}, {AccessKey: "another key", SecretKey: realSecret}} {
			wrong.Endpoint, wrong.Region = set.Endpoint, set.Region
			at := bucket(t, "s3://bkt/keys", wrong)
			_, err := at.Lock(ctx, "one")
			if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "the store refuses the credentials") {
				t.Errorf("lock with wrong keys: %v", err)
			}
			if _, err := at.List(ctx, ""); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "the store refuses the credentials") {
				t.Errorf("list with wrong keys: %v", err)
			}
		}
	})
	t.Run("parts", func(t *testing.T) { leavesParts(t, set) })
}

// leavesParts begins an upload as a process that is killed, and removes its part.
func leavesParts(t *testing.T, set s3.Settings) {
	const name = "segments/0123456789abcdef-1.seg"
	ctx := t.Context()
	core, err := minio.NewCore(realDomain, &minio.Options{Creds: credentials.NewStaticV4(realKey, realSecret, ""), Region: "us-east-1"})
	if err != nil {
		t.Fatal(err)
	}
	id, err := core.NewMultipartUpload(ctx, "bkt", "parts/"+name, minio.PutObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := core.PutObjectPart(ctx, "bkt", "parts/"+name, id, 1, bytes.NewReader(random(1000)), 1000, minio.PutObjectPartOptions{}); err != nil {
		t.Fatal(err)
	}
	at := bucket(t, "s3://bkt/parts", set)
	if err := at.RemovePartial(ctx); err != nil {
		t.Fatal(err)
	}
	l, err := core.ListMultipartUploads(ctx, "bkt", "parts/", "", "", "", 100)
	if err != nil || len(l.Uploads) != 0 {
		t.Errorf("%d uploads are left, %v", len(l.Uploads), err)
	}
	content := random(40 << 20) // three parts
	if err := at.Put(ctx, name, int64(len(content)), bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	r, _, err := at.Read(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes of %d, %v", len(got), len(content), err)
	}
}
