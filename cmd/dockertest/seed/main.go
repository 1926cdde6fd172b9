// Command seed copies the part of a build cache that one build uses: images.sh gives it to the build within the engine, which would compile
// four hundred packages again that this machine has compiled already.
//
//	GOCACHEPROG="seed FROM TO" go build …
//
// It answers the go command from the cache FROM, which it does not change, and writes every entry that is used, or new, into TO. Both have the
// layout of GOCACHE: XX/ACTION-a names the output of an action, XX/OUTPUT-d holds it.
package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// request is one of the go command, as `go doc cmd/go/internal/cacheprog` describes it.
type request struct {
	ID       int64
	Command  string
	ActionID []byte
	OutputID []byte
	BodySize int64
}

type response struct {
	ID            int64
	KnownCommands []string   `json:",omitempty"`
	Miss          bool       `json:",omitempty"`
	OutputID      []byte     `json:",omitempty"`
	Size          int64      `json:",omitempty"`
	Time          *time.Time `json:",omitempty"`
	DiskPath      string     `json:",omitempty"`
	Err           string     `json:",omitempty"`
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: seed FROM TO")
		os.Exit(2)
	}
	if err := serve(os.Args[1], os.Args[2], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "seed:", err)
		os.Exit(1)
	}
}

// serve answers requests until the go command closes.
func serve(from, to string, r io.Reader, w io.Writer) error {
	in, out := json.NewDecoder(bufio.NewReader(r)), json.NewEncoder(w)
	if err := out.Encode(response{KnownCommands: []string{"get", "put", "close"}}); err != nil {
		return err
	}
	for {
		var q request
		if err := in.Decode(&q); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		a := response{ID: q.ID}
		var err error
		switch q.Command {
		case "get":
			err = get(from, to, q, &a)
		case "put":
			var body []byte
			if q.BodySize > 0 {
				if err := in.Decode(&body); err != nil { // a string in base64
					return err
				}
			}
			err = put(to, q, body, &a)
		}
		if err != nil {
			a.Err = err.Error()
		}
		if err := out.Encode(a); err != nil || q.Command == "close" {
			return err
		}
	}
}

func path(dir string, id []byte, kind string) string {
	name := hex.EncodeToString(id)
	return filepath.Join(dir, name[:2], name+kind)
}

// get answers with the entry of TO, or with that of FROM, which it copies first.
func get(from, to string, q request, a *response) error {
	for _, dir := range []string{to, from} {
		entry, err := os.ReadFile(path(dir, q.ActionID, "-a"))
		if err != nil {
			continue
		}
		var action, output string
		var size, at int64
		if _, err := fmt.Sscanf(string(entry), "v1 %s %s %d %d", &action, &output, &size, &at); err != nil {
			continue
		}
		id, err := hex.DecodeString(output)
		if err != nil || len(id) == 0 {
			continue
		}
		body, err := os.ReadFile(path(dir, id, "-d"))
		if err != nil || int64(len(body)) != size {
			continue // another process trims the cache
		}
		if dir == from {
			if err := write(path(to, id, "-d"), body); err != nil {
				return err
			}
			if err := write(path(to, q.ActionID, "-a"), entry); err != nil {
				return err
			}
		}
		when := time.Unix(0, at)
		a.OutputID, a.Size, a.Time, a.DiskPath = id, size, &when, path(to, id, "-d")
		return nil
	}
	a.Miss = true
	return nil
}

// put writes a new entry.
func put(to string, q request, body []byte, a *response) error {
	a.DiskPath = path(to, q.OutputID, "-d")
	if err := write(a.DiskPath, body); err != nil {
		return err
	}
	entry := fmt.Sprintf("v1 %x %x %20d %20d\n", q.ActionID, q.OutputID, len(body), time.Now().UnixNano())
	return write(path(to, q.ActionID, "-a"), []byte(entry))
}

func write(name string, body []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, body, 0o644)
}
