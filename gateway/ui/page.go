package ui

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
	"sync"
)

//go:embed dist
var dist embed.FS

// Files are the paths that Page answers, as patterns of http.ServeMux.
func Files() []string {
	return []string{"GET /{$}", "GET /assets/", "GET /icon.svg", "GET /NOTICE.txt"}
}

// policy lets the page load its own files and ask its own origin, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'self'"

// file is one file of the page, as it is sent.
type file struct {
	plain, zipped []byte
	kind, tag     string
}

// Page serves the files of the page. They hold no data: all data comes from the API.
func Page() http.Handler {
	load := sync.OnceValue(files)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(path.Clean(r.URL.Path), "/")
		if name == "" {
			name = "index.html"
		}
		f, ok := load()[name]
		if !ok {
			http.NotFound(w, r)
			return
		}
		f.serve(w, r)
	})
}

func (f *file) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache") // kept, but asked about: names do not change with contents
	h.Set("ETag", f.tag)
	h.Set("Vary", "Accept-Encoding")
	if r.Header.Get("If-None-Match") == f.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	body := f.plain
	if acceptsGzip(r) && len(f.zipped) < len(f.plain) {
		h.Set("Content-Encoding", "gzip")
		body = f.zipped
	}
	_, _ = w.Write(body)
}

// files reads the page. It is done once, at the first request: compressing needs some 50 ms.
func files() map[string]*file {
	out := map[string]*file{}
	_ = fs.WalkDir(dist, "dist", func(name string, d fs.DirEntry, err error) error { // an embedded tree has no errors
		if err != nil || d.IsDir() {
			return err
		}
		text, err := dist.ReadFile(name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(text)
		out[strings.TrimPrefix(name, "dist/")] = &file{
			plain: text, zipped: zip(text), kind: kindOf(name), tag: `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`,
		}
		return nil
	})
	return out
}

// kindOf does not go by the files of the operating system, which differ.
func kindOf(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	case ".txt":
		return "text/plain; charset=utf-8"
	}
	return mime.TypeByExtension(path.Ext(name))
}

func zip(text []byte) []byte {
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestCompression) // the level is one there is
	_, _ = w.Write(text)                                    // to memory
	_ = w.Close()
	return out.Bytes()
}

// acceptsGzip reports whether a request accepts gzip. Browsers send no weights.
func acceptsGzip(r *http.Request) bool {
	for _, v := range r.Header.Values("Accept-Encoding") {
		for one := range strings.SplitSeq(v, ",") {
			if coding, weight, _ := strings.Cut(strings.TrimSpace(one), ";"); coding == "gzip" && strings.ReplaceAll(weight, " ", "") != "q=0" {
				return true
			}
		}
	}
	return false
}
