package standalonetest

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

var recordInflux = flag.String("record-influx", "", "URL of an empty InfluxDB 1.x whose answers are recorded for TestInfluxsRequestsAreAnsweredAsByInflux")

const influxRecording = "testdata/influx-1.6.7.json"

// influxAsks are requests in the forms in which Grafana's data source for InfluxQL, Telegraf, the shell and client libraries of Influx 1.x
// send them, in order: later ones ask for rows that earlier ones wrote. The field is called value, so that a measurement has the same name in both.
var influxAsks = []struct{ name, method, target, form, body string }{
	{"ping", "GET", "/ping", "", ""},
	{"ping, HEAD", "HEAD", "/ping", "", ""},
	{"ping of clients that wait", "GET", "/ping?wait_for_leader=1s", "", ""},
	{"CREATE DATABASE by POST", "POST", "/query", "q=CREATE+DATABASE+%22shop%22", ""},
	{"CREATE DATABASE again", "POST", "/query", "q=CREATE+DATABASE+%22shop%22", ""},
	{"CREATE DATABASE with a policy", "POST", "/query", "q=CREATE+DATABASE+month+WITH+DURATION+30d+REPLICATION+1+NAME+%22autogen%22", ""},
	{"CREATE DATABASE, q beside a POST without a body", "POST", "/query?q=CREATE+DATABASE+%22beside%22", "", ""},
	{"CREATE DATABASE by GET", "GET", "/query?q=CREATE+DATABASE+%22got%22", "", ""},
	{"CREATE DATABASE without a name", "POST", "/query", "q=CREATE+DATABASE", ""},

	{"write", "POST", "/write?db=shop", "", "cpu,host=a,region=eu value=1 1700000000000000000\ncpu,host=b,region=us value=2 1700000000000000000\n"},
	{"write with a precision", "POST", "/write?db=shop&precision=s", "", "mem,host=a value=3 1700000000\n"},
	{"write with a policy and a consistency", "POST", "/write?db=shop&rp=autogen&consistency=one&precision=ms", "", "mem,host=b value=4 1700000000000\n"},
	{"write with user and password", "POST", "/write?db=shop&u=any&p=any", "", "mem,host=c value=5 1700000000000000000\n"},
	{"write of nothing", "POST", "/write?db=shop", "", ""},
	{"write of a comment", "POST", "/write?db=shop", "", "# nothing\n"},
	{"write without a database", "POST", "/write", "", "cpu value=1 1700000000000000000\n"},
	{"write of a bad line", "POST", "/write?db=shop", "", "cpu,host=a\n"},
	{"write of a bad line between good ones", "POST", "/write?db=shop", "", "disk,host=a value=1 1700000000000000000\ndisk value=\ndisk,host=b value=1 1700000000000000000\n"},
	{"write of a bad time", "POST", "/write?db=shop", "", "cpu value=1 soon\n"},
	{"write with a precision that is not", "POST", "/write?db=shop&precision=weeks", "", "cpu,host=a,region=eu value=1 1700000000000000000\n"},
	{"write with a consistency that is not", "POST", "/write?db=shop&consistency=much", "", "cpu,host=a,region=eu value=1 1700000000000000000\n"},
	{"write by GET", "GET", "/write?db=shop", "", ""},

	{"SHOW DATABASES", "GET", "/query?q=SHOW+DATABASES", "", ""},
	{"SHOW DATABASES, pretty", "GET", "/query?q=SHOW+DATABASES&pretty=true", "", ""},
	{"SHOW DATABASES, chunked", "GET", "/query?q=SHOW+DATABASES&chunked=true", "", ""},
	{"SHOW DATABASES, small letters and a semicolon", "POST", "/query", "q=show+databases%3B&epoch=ms", ""},
	{"SHOW RETENTION POLICIES", "GET", "/query?db=shop&q=SHOW+RETENTION+POLICIES+on+%22shop%22", "", ""},
	{"SHOW RETENTION POLICIES of the database asked", "GET", "/query?db=shop&q=SHOW+RETENTION+POLICIES", "", ""},
	{"SHOW RETENTION POLICIES of none", "GET", "/query?q=SHOW+RETENTION+POLICIES+ON+nope", "", ""},
	{"SHOW MEASUREMENTS", "GET", "/query?db=shop&epoch=ms&q=SHOW+MEASUREMENTS+LIMIT+100", "", ""},
	{"SHOW MEASUREMENTS by POST", "POST", "/query?db=shop&epoch=ms", "q=SHOW+MEASUREMENTS", ""},
	{"SHOW MEASUREMENTS that match", "GET", "/query?db=shop&q=SHOW+MEASUREMENTS+WITH+MEASUREMENT+%3D~+%2Fm.m%2F", "", ""},
	{"SHOW MEASUREMENTS of a host", "GET", "/query?db=shop&q=SHOW+MEASUREMENTS+WHERE+%22host%22+%3D+%27c%27", "", ""},
	{"SHOW MEASUREMENTS of an empty database", "GET", "/query?db=got&q=SHOW+MEASUREMENTS", "", ""},
	{"SHOW MEASUREMENTS without a database", "GET", "/query?q=SHOW+MEASUREMENTS", "", ""},
	{"SHOW MEASUREMENTS of a database that is not", "GET", "/query?db=nope&q=SHOW+MEASUREMENTS", "", ""},
	{"SHOW TAG KEYS", "GET", "/query?db=shop&q=SHOW+TAG+KEYS", "", ""},
	{"SHOW TAG KEYS of a measurement", "GET", "/query?db=shop&q=SHOW+TAG+KEYS+FROM+%22cpu%22", "", ""},
	{"SHOW TAG VALUES", "GET", "/query?db=shop&q=SHOW+TAG+VALUES+FROM+%22cpu%22+WITH+KEY+%3D+%22host%22", "", ""},
	{"SHOW TAG VALUES of all measurements", "GET", "/query?db=shop&q=SHOW+TAG+VALUES+WITH+KEY+%3D+%22host%22", "", ""},
	{"SHOW TAG VALUES of two keys", "GET", "/query?db=shop&q=SHOW+TAG+VALUES+FROM+cpu+WITH+KEY+IN+%28%22host%22%2C%22region%22%29", "", ""},
	{"SHOW TAG VALUES that match", "GET", "/query?db=shop&q=SHOW+TAG+VALUES+FROM+cpu+WITH+KEY+%3D+%22host%22+WHERE+%22region%22+%3D~+%2Fe.%2F", "", ""},
	{"SHOW TAG VALUES without a key", "GET", "/query?db=shop&q=SHOW+TAG+VALUES+FROM+cpu", "", ""},
	{"SHOW FIELD KEYS", "GET", "/query?db=shop&q=SHOW+FIELD+KEYS", "", ""},
	{"SHOW FIELD KEYS of a measurement", "GET", "/query?db=shop&q=SHOW+FIELD+KEYS+FROM+%22cpu%22", "", ""},
	{"SHOW SERIES", "GET", "/query?db=shop&q=SHOW+SERIES+FROM+%22cpu%22", "", ""},
	{"two statements", "GET", "/query?db=shop&q=SHOW+DATABASES%3BSHOW+MEASUREMENTS", "", ""},
	{"a good statement and one that is none", "GET", "/query?db=shop&q=SHOW+DATABASES%3BSHOW+NOTHING", "", ""},
	{"no statement", "GET", "/query?db=shop", "", ""},
	{"an empty statement", "GET", "/query?db=shop&q=", "", ""},
	{"a statement that is none", "GET", "/query?db=shop&q=HELLO", "", ""},
	{"a statement that is not finished", "GET", "/query?db=shop&q=SHOW", "", ""},
	{"a user", "POST", "/query", "q=CREATE+USER+ann+WITH+PASSWORD+%27x%27", ""},
	{"SELECT", "GET", "/query?db=shop&epoch=ms&q=SELECT+mean%28%22value%22%29+FROM+%22cpu%22+WHERE+time+%3E+0", "", ""},
	{"a statement by PUT", "PUT", "/query?q=SHOW+DATABASES", "", ""},
	{"write to a database that is not", "POST", "/write?db=nope", "", "cpu value=1 1700000000000000000\n"},
}

// influxDiffers are the requests that Spillway answers otherwise on purpose: why, and a part of its answer.
var influxDiffers = map[string]struct{ why, answer string }{
	"CREATE DATABASE without a name":        {oneByOne, "found EOF, expected identifier"},
	"SHOW TAG VALUES without a key":         {oneByOne, "SHOW TAG VALUES wants WITH KEY"},
	"a good statement and one that is none": {oneByOne, "statement 1 error=true"},
	"a statement that is none":              {oneByOne, "HELLO is not supported here: read data through the Prometheus API"},
	"a statement that is not finished":      {oneByOne, "SHOW is not supported here"},

	"SHOW MEASUREMENTS that match":                {noConditions, "WITH is not supported here"},
	"SHOW MEASUREMENTS of a host":                 {noConditions, "WHERE is not supported here"},
	"SHOW TAG VALUES that match":                  {noConditions, "WHERE is not supported here"},
	"SHOW MEASUREMENTS of a database that is not": {"a name that is mistyped is found sooner", "database not found: nope"},
	"SELECT":                             {"rows are read by PromQL, and the answer says how", "as in avg_over_time(cpu[5m])"},
	"a user":                             {"users are those of the web-config file", "CREATE USER ann is not supported here"},
	"SHOW DATABASES, pretty":             {"answers are for programs: pretty changes nothing but spaces", `{"results":[{"statement_id":0,"series":[{"name":"databases"`},
	"write with a precision that is not": {"Influx takes the times for nanoseconds, and the rows lie in 1970", `invalid precision \"weeks\"`},
	"write to a database that is not":    {"a table is made at the first write; --no-create-on-write answers 404", "204"},
	"write by GET":                       {anyPath, "405"},
	"a statement by PUT":                 {anyPath, "405"},
}

const (
	oneByOne     = "statements are read one after the other: the good ones are answered, and the error of the other stands in its place"
	noConditions = "a condition that is not understood is refused: without it another question would be answered"
	anyPath      = "methods are refused for all paths in one place, which knows no version of Influx"
)

// influxAnswer is an answer in the recording, as it came.
type influxAnswer struct {
	Name   string            `json:"name"`
	Status int               `json:"status"`
	Header map[string]string `json:"header"`
	Body   string            `json:"body"`
}

// influxHeaders are those that clients read.
var influxHeaders = []string{"Content-Type", "X-Influxdb-Version", "X-Influxdb-Error", "Allow"}

func askInflux(t *testing.T, url string) (all []influxAnswer) {
	t.Helper()
	for _, ask := range influxAsks {
		body, kind := ask.body, ""
		if ask.form != "" {
			body, kind = ask.form, "application/x-www-form-urlencoded"
		}
		rq, err := http.NewRequest(ask.method, url+ask.target, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if kind != "" {
			rq.Header.Set("Content-Type", kind)
		}
		resp, err := http.DefaultClient.Do(rq)
		if err != nil {
			t.Fatalf("%s: %v", ask.name, err)
		}
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatalf("%s: %v", ask.name, err)
		}
		resp.Body.Close()
		a := influxAnswer{Name: ask.name, Status: resp.StatusCode, Header: map[string]string{}, Body: string(text)}
		for _, name := range influxHeaders {
			if value := resp.Header.Get(name); value != "" {
				a.Header[name] = value
			}
		}
		all = append(all, a)
	}
	return all
}

// summary is what a client sees of an answer: the status, the form of the content, whether there are errors, and the series with their columns
// and rows. The words of errors and the version are each server's own; so is the order of rows, and that there is a table called default from
// the start.
func (a influxAnswer) summary() string {
	text := fmt.Sprintf("%d version=%t error=%t\n", a.Status, a.Header["X-Influxdb-Version"] != "", a.Header["X-Influxdb-Error"] != "")
	if a.Body != "" {
		text += a.Header["Content-Type"] + "\n"
	}
	if strings.Contains(a.Body, "\n  ") {
		text += "indented\n"
	}
	documents := json.NewDecoder(strings.NewReader(a.Body))
	for {
		var d struct {
			Error   string
			Results []struct {
				ID     int `json:"statement_id"`
				Error  string
				Series []struct {
					Name    string
					Tags    map[string]string
					Columns []string
					Values  [][]any
				}
			}
		}
		if err := documents.Decode(&d); err == io.EOF {
			return text
		} else if err != nil {
			return text + "no JSON: " + a.Body
		}
		if d.Error != "" {
			text += "error\n"
		}
		for _, r := range d.Results {
			text += fmt.Sprintf("statement %d error=%t\n", r.ID, r.Error != "")
			for _, s := range r.Series {
				text += fmt.Sprintf("  %q %v %v\n", s.Name, s.Tags, s.Columns)
				lines := []string{}
				for _, row := range s.Values {
					if line := fmt.Sprintf("    %v\n", row); s.Name != "databases" || line != "    [default]\n" {
						lines = append(lines, line)
					}
				}
				slices.Sort(lines)
				text += strings.Join(lines, "")
			}
		}
	}
}

// TestInfluxsRequestsAreAnsweredAsByInflux compares the answers of a process with those that a real InfluxDB gave, which are recorded. To
// record them again, with Debian's package influxdb:
//
//	influxd & go test ./cmd/standalonetest -run InfluxsRequests -record-influx http://127.0.0.1:8086
func TestInfluxsRequestsAreAnsweredAsByInflux(t *testing.T) {
	if *recordInflux != "" {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		e.SetIndent("", " ")
		if err := e.Encode(askInflux(t, *recordInflux)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(influxRecording, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(influxRecording)
	if err != nil {
		t.Fatal(err)
	}
	var recorded []influxAnswer
	if err := json.Unmarshal(text, &recorded); err != nil {
		t.Fatal(err)
	}
	p := processtest.New(t)
	p.Start()
	answers := askInflux(t, "http://"+p.Addr)
	if len(recorded) != len(answers) {
		t.Fatalf("%d answers are recorded, of %d requests: record them again", len(recorded), len(answers))
	}
	for i, got := range answers {
		want := recorded[i]
		differs, known := influxDiffers[want.Name]
		switch same := got.summary() == want.summary(); {
		case got.Name != want.Name:
			t.Fatalf("the answer to %q is recorded where %q is asked: record them again", want.Name, got.Name)
		case same && known:
			t.Errorf("%s: the answer is Influx', and listed as a difference", got.Name)
		case known && !strings.Contains(got.summary()+got.Body, differs.answer):
			t.Errorf("%s: %s%s\nwant in it: %s", got.Name, got.summary(), got.Body, differs.answer)
		case !same && !known:
			t.Errorf("%s: Influx answers\n%s%s\nSpillway answers\n%s%s", got.Name, want.summary(), want.Body, got.summary(), got.Body)
		}
	}
	for name, d := range influxDiffers {
		if d.why == "" || d.answer == "" {
			t.Errorf("%s differs: why, and how?", name)
		}
	}
}
