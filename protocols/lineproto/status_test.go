package lineproto

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

var flavours = map[Flavour]string{V1: "v1", V2: "v2", V3: "v3"}

func (a Answer) String() string {
	var w strings.Builder
	fmt.Fprintf(&w, "  %d\n", a.Status)
	for _, h := range a.Header {
		fmt.Fprintf(&w, "  %s: %s\n", h.Name, h.Value)
	}
	if a.Body != nil {
		fmt.Fprintf(&w, "  %s", a.Body)
	}
	return w.String()
}

var twoBadLines = []point.Refusal{
	{Item: 2, Text: "cpu,host=a", Reason: "no fields", Kind: fault.Invalid},
	{Item: 5, Text: `mem "x" <y>`, Reason: "no '=' behind the field's name", Kind: fault.Invalid},
}

// TestAnswers shows every answer as it goes over the wire: testdata/answers.txt is the table that clients see.
func TestAnswers(t *testing.T) {
	outcomes := []struct {
		story string
		o     Outcome
	}{
		{"all stored", Outcome{Stored: 3, Partial: true}},
		{"two lines of five are bad", Outcome{Stored: 3, Refused: twoBadLines, RefusedRows: 2, Partial: true}},
		{"all lines are bad", Outcome{Refused: twoBadLines, RefusedRows: 2, Partial: true}},
		{"a bad line, and partial writes are not wanted", Outcome{Refused: twoBadLines[:1], RefusedRows: 1}},
		{"rows over the series limit", Outcome{Stored: 1, RefusedRows: 3, Partial: true, Refused: []point.Refusal{
			{Item: 1, Reason: "more than 10 series in table \"x\"", Kind: fault.Invalid}, {Item: 2, Reason: "more than 10 series in table \"x\"", Kind: fault.Invalid},
			{Item: 3, Reason: "the timestamp is older than the retention of 24h", Kind: fault.Invalid}}}},
		{"a line met a full dictionary", Outcome{Stored: 1, RefusedRows: 2, Partial: true, Refused: []point.Refusal{
			twoBadLines[0], {Item: 9, Text: "new f=1", Reason: "more than 5 series within one dictionary generation", Kind: fault.Throttled}}}},
		{"the database is missing", Outcome{Err: fault.Errorf(fault.Invalid, "database is required")}},
		{"the error quotes deadly words", Outcome{Err: fault.Errorf(fault.Unavailable, "table \"Partial Write\" is away")}},
	}
	for _, k := range fault.Kinds() {
		outcomes = append(outcomes, struct {
			story string
			o     Outcome
		}{"kind " + k.String(), Outcome{Err: fault.Errorf(k, "storage server s2: something %s", k), DB: `tele"graf`, RetryAfter: 1500 * time.Millisecond}})
	}
	outcomes = append(outcomes, struct {
		story string
		o     Outcome
	}{"an error without a kind", Outcome{Err: errors.New("/var/lib/spillway/secret: no such file")}})

	var w strings.Builder
	for _, c := range outcomes {
		fmt.Fprintf(&w, "# %s\n", c.story)
		for f := V1; f <= V3; f++ {
			fmt.Fprintf(&w, "%s\n%s", flavours[f], withNewline(f.Answer(c.o).String()))
		}
	}
	w.WriteString("# no good credentials\n")
	for f := V1; f <= V3; f++ {
		fmt.Fprintf(&w, "%s\n%s", flavours[f], withNewline(f.Unauthorized().String()))
	}
	const path = "testdata/answers.txt"
	if *rewrite {
		if err := os.WriteFile(path, []byte(w.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if w.String() != string(want) {
		t.Errorf("got\n%s\nwant\n%s", w.String(), want)
	}
}

func withNewline(s string) string { return strings.TrimSuffix(s, "\n") + "\n" }

// Each Kind of error and its status, in numbers.
func TestEveryKindHasItsStatus(t *testing.T) {
	want := map[fault.Kind][3]int{
		fault.Internal:    {500, 500, 500},
		fault.Invalid:     {400, 400, 400},
		fault.TooLarge:    {413, 413, 413},
		fault.Throttled:   {503, 429, 429},
		fault.Stale:       {503, 503, 503},
		fault.Unavailable: {503, 503, 503},
		fault.Corrupt:     {500, 500, 500},
		fault.NotFound:    {404, 404, 404},
		fault.Canceled:    {503, 503, 503},
		fault.Denied:      {503, 503, 503},
	}
	for _, k := range fault.Kinds() {
		w, ok := want[k]
		if !ok {
			t.Errorf("kind %s has no answer", k)
		}
		for f := V1; f <= V3; f++ {
			a := f.Answer(Outcome{Err: fault.Errorf(k, "x")})
			if a.Status != w[f-1] {
				t.Errorf("%s, %s: %d, want %d", k, flavours[f], a.Status, w[f-1])
			}
			if got, want := header(a, "Retry-After"), a.Status == 503 || a.Status == 429; (got != "") != want {
				t.Errorf("%s, %s: Retry-After %q", k, flavours[f], got)
			}
		}
	}
	if a := V2.Answer(Outcome{Err: fault.Errorf(200, "x")}); a.Status != 500 {
		t.Errorf("a kind of a newer peer: %d", a.Status)
	}
}

func header(a Answer, name string) string {
	for _, h := range a.Header {
		if h.Name == name {
			return h.Value
		}
	}
	return ""
}

// Telegraf forgets a batch in silence at these words, and at any 4xx; so an answer that asks for a retry must have
// neither.
func TestTelegrafKeepsWhatShouldBeSentAgain(t *testing.T) {
	words := []string{"retention policy not found", "hinted handoff queue not empty", "points beyond retention policy", "partial write", "unable to parse"}
	for _, k := range fault.Kinds() {
		for _, said := range words {
			text := "label \"" + said + "\" is away"
			for f := V1; f <= V3; f++ {
				for _, o := range []Outcome{
					{Err: fault.Errorf(k, "%s", text)},
					{Stored: 1, RefusedRows: 1, Partial: true, Refused: []point.Refusal{{Text: text, Reason: text, Kind: k}}},
				} {
					a := f.Answer(o)
					if retryable(k) && f == V1 && a.Status < 500 {
						t.Errorf("%s, v1: %d drops the batch", k, a.Status)
					}
					if a.Status < 500 && a.Status != 429 {
						continue
					}
					whole := strings.ToLower(a.String())
					for _, w := range words {
						if strings.Contains(whole, w) {
							t.Errorf("%s, %s: %q in\n%s", k, flavours[f], w, whole)
						}
					}
				}
			}
		}
	}
}

func TestRetryAfterIsWholeSeconds(t *testing.T) {
	f := func(d time.Duration, want string) {
		t.Helper()
		if got := retryAfter(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
	f(0, "5")
	f(-time.Second, "5")
	f(time.Nanosecond, "1")
	f(time.Second, "1")
	f(1001*time.Millisecond, "2")
	f(10*time.Minute, "600")
}

// Whatever a sender put into a line, the answer is one JSON value and its headers are one line of ASCII each.
func FuzzAnswer(f *testing.F) {
	f.Add("cpu,host=a", "no fields", uint8(0), true)
	f.Add("\xff\n\r\x00\"", strings.Repeat("é", 2000), uint8(3), false)
	f.Fuzz(func(t *testing.T, text, reason string, kind uint8, partial bool) {
		refused := []point.Refusal{{Item: 1, Text: text, Reason: reason, Kind: fault.Kind(kind % 9)}}
		for f := V1; f <= V3; f++ {
			for _, o := range []Outcome{
				{Stored: 1, Refused: refused, RefusedRows: 1, Partial: partial},
				{Err: fault.Errorf(fault.Kind(kind%9), "%s", reason), DB: text},
			} {
				a := f.Answer(o)
				if !json.Valid(a.Body) {
					t.Errorf("body %q", a.Body)
				}
				for _, h := range a.Header {
					if len(h.Value) > errorHeaderMax || strings.ContainsFunc(h.Value, func(r rune) bool { return r < ' ' || r > '~' }) {
						t.Errorf("header %s: %q", h.Name, h.Value)
					}
				}
			}
		}
	})
}
