package ui

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"html/template"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// Path is where the status is served as JSON.
const Path = "/api/v1/status/cluster"

// PartitionsShown bounds the rectangles drawn of one table.
const PartitionsShown = 500

// Page answers with the status as a page.
func Page(source Source) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var out bytes.Buffer
		if err := page.Execute(&out, view(source(r.Context()))); err != nil {
			http.Error(w, "The status page cannot be made: "+err.Error(), http.StatusInternalServerError)
			return
		}
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; img-src data:")
		h.Set("Cache-Control", "no-store")
		_, _ = w.Write(out.Bytes())
	})
}

// JSON answers with the status as JSON, in the envelope of the Prometheus API.
func JSON(source Source) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"status": "success", "data": source(r.Context())})
	})
}

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"bytes": bytesText, "count": countText, "span": spanText, "time": timeText, "percent": percentText, "perSecond": perSecondText,
}).Parse(pageText))

// shown is what the template draws: a Status, and where its rectangles lie.
type shown struct {
	Status
	Drawings []drawing
	Legend   []swatch
}

type swatch struct {
	Name string
	Fill template.CSS // of fill's making, never a user's
}

type drawing struct {
	Table
	Rows, Bytes   uint64
	LeftOut       int
	Width, Height float64
	Rects         []rect
	Ticks         []tick
	Now           float64 // -1: not within
}

type rect struct {
	X, Y, W, H  float64
	Fill, Class string
	Title       string
}

type tick struct {
	X      float64
	Text   string
	Anchor string
}

const (
	drawWidth  = 1000.0
	drawHeight = 120.0
)

func view(s Status) shown {
	v := shown{Status: s}
	leaders := map[string]bool{}
	for _, t := range s.Tables {
		v.Drawings = append(v.Drawings, draw(t, s.Now))
		for _, p := range t.Partitions {
			leaders[p.Leader] = true
		}
	}
	for name := range leaders {
		if name != "" {
			v.Legend = append(v.Legend, swatch{name, template.CSS(fill(name))})
		}
	}
	slices.SortFunc(v.Legend, func(a, b swatch) int { return cmpText(a.Name, b.Name) })
	if leaders[""] {
		v.Legend = append(v.Legend, swatch{"nobody", template.CSS(fill(""))})
	}
	return v
}

func cmpText(a, b string) int { return bytes.Compare([]byte(a), []byte(b)) }

// draw lays a table's newest partitions out, time to the right, ring upwards.
func draw(t Table, now time.Time) drawing {
	d := drawing{Table: t, Width: drawWidth, Height: drawHeight, Now: -1}
	for _, p := range t.Partitions {
		d.Rows += p.Rows
		d.Bytes += p.Bytes
	}
	ps := t.Partitions
	if len(ps) > PartitionsShown {
		d.LeftOut = len(ps) - PartitionsShown
		ps = ps[d.LeftOut:]
	}
	if len(ps) == 0 {
		return d
	}
	lo, hi := ps[0].From, ps[0].To
	for _, p := range ps {
		if p.From.Before(lo) {
			lo = p.From
		}
		if p.To.After(hi) {
			hi = p.To
		}
	}
	// Seconds, not a Duration: partitions at the ends of time lie further apart than one holds.
	seconds := func(at time.Time) float64 { return float64(at.Unix()) + float64(at.Nanosecond())/1e9 }
	x := func(at time.Time) float64 {
		return (seconds(at) - seconds(lo)) / (seconds(hi) - seconds(lo)) * drawWidth
	}
	for _, p := range ps {
		d.Rects = append(d.Rects, rect{
			X: x(p.From), W: max(x(p.To)-x(p.From), 0.5), Y: (1 - p.RingHi) * drawHeight, H: (p.RingHi - p.RingLo) * drawHeight,
			Fill: fill(p.Leader), Class: p.class(), Title: p.title(),
		})
	}
	d.Ticks = []tick{{0, timeText(lo), "start"}, {drawWidth, timeText(hi), "end"}}
	if now.After(lo) && now.Before(hi) {
		d.Now = x(now)
	}
	return d
}

func (p Partition) class() string {
	switch {
	case p.Offline != "":
		return "offline"
	case p.Leader == "":
		return "unled"
	}
	return "led"
}

func (p Partition) title() string {
	s := fmt.Sprintf("partition %d, %s\n%s to %s\nring %.4f to %.4f\n%s rows, %s", p.ID, p.State, timeText(p.From), timeText(p.To),
		p.RingLo, p.RingHi, countText(p.Rows), bytesText(p.Bytes))
	switch {
	case p.Offline != "":
		s += "\noffline: " + p.Offline
	case p.Leader == "":
		s += "\nnobody leads it"
	default:
		s += "\nled by " + p.Leader
		if p.Epoch > 0 {
			s += fmt.Sprintf(", epoch %d", p.Epoch)
		}
		if p.LeaseAge > 0 {
			s += " since " + spanText(p.LeaseAge)
		}
	}
	return s + fmt.Sprintf("\nplaced on %v", p.Servers)
}

// fill is a server's colour, the same on every page.
func fill(server string) string {
	if server == "" {
		return "#d9d9d9"
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(server))
	return fmt.Sprintf("hsl(%d, 52%%, 58%%)", h.Sum32()*137%360) // neighbours in name lie far apart in hue
}

func bytesText(n uint64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return strconv.FormatUint(n, 10) + " B"
	}
	f, i := float64(n)/1024, 0
	for f >= 1024 {
		f, i = f/1024, i+1
	}
	return fmt.Sprintf("%.1f %ciB", f, units[i])
}

// countText puts thin groups of three into a number.
func countText(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func spanText(d time.Duration) string {
	switch {
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	case d < 48*time.Hour:
		return d.Round(time.Second).String()
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}

func timeText(t time.Time) string {
	if t.Nanosecond() != 0 {
		return t.UTC().Format("2006-01-02 15:04:05.000")
	}
	return t.UTC().Format("2006-01-02 15:04:05")
}

func percentText(f float64) string { return fmt.Sprintf("%.0f %%", f*100) }

func perSecondText(f float64) string { return countText(uint64(max(f, 0))) + "/s" }
