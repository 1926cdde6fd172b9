package kafka

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// letter is a record that is put aside, with the reason.
type letter struct {
	topic     string
	partition int32
	offset    int64
	record    *kgo.Record // nil: it could not be read from Kafka at all
	rows      int         // its refused rows; 0: the whole record, unread
	kind      fault.Kind
	reason    string
}

// Headers of dead letters. The record's own headers are kept beside them.
const (
	headerTopic     = "spillway-topic"
	headerPartition = "spillway-partition"
	headerOffset    = "spillway-offset"
	headerReason    = "spillway-reason"
	headerKind      = "spillway-kind"
	headerRows      = "spillway-rows-refused"
	headerCut       = "spillway-value-cut" // the value's length, where only its beginning could be put aside
)

// valueKept is how much of a value is put aside if the topic does not accept the whole value.
const valueKept = 64 << 10

// letters puts records aside. send returns when all are safe: no record is settled before.
type letters interface {
	send(ctx context.Context, all []*letter) error
	close() error
}

// topicLetters produces to a topic with acks=all.
type topicLetters struct {
	client *kgo.Client
	topic  string
}

func (t *topicLetters) close() error { return nil }

func (t *topicLetters) send(ctx context.Context, all []*letter) error {
	records := make([]*kgo.Record, len(all))
	for i, l := range all {
		records[i] = l.produce(t.topic)
	}
	var again []*kgo.Record
	for _, r := range t.client.ProduceSync(ctx, records...) {
		switch {
		case r.Err == nil:
		case errors.Is(r.Err, kerr.MessageTooLarge) || errors.Is(r.Err, kerr.RecordListTooLarge):
			// The dead-letter topic accepts shorter records than the source. The record itself stays where offset says.
			again = append(again, cutRecord(r.Record))
		default:
			return fault.Wrap(r.Err, fault.Unavailable, "dead-letter topic %s", t.topic)
		}
	}
	if len(again) == 0 {
		return nil
	}
	return fault.Wrap(t.client.ProduceSync(ctx, again...).FirstErr(), fault.Unavailable, "dead-letter topic %s", t.topic)
}

func (l *letter) produce(topic string) *kgo.Record {
	r := &kgo.Record{Topic: topic}
	add := func(key, value string) {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: key, Value: []byte(value)})
	}
	add(headerTopic, l.topic)
	add(headerPartition, strconv.Itoa(int(l.partition)))
	add(headerOffset, strconv.FormatInt(l.offset, 10))
	add(headerKind, l.kind.String())
	add(headerReason, l.reason)
	add(headerRows, strconv.Itoa(l.rows))
	if l.record != nil {
		r.Key, r.Value, r.Timestamp = l.record.Key, l.record.Value, l.record.Timestamp
		r.Headers = append(r.Headers, l.record.Headers...)
	}
	return r
}

func cutRecord(r *kgo.Record) *kgo.Record {
	c := &kgo.Record{Topic: r.Topic, Timestamp: r.Timestamp, Headers: []kgo.RecordHeader{
		{Key: headerCut, Value: strconv.AppendInt(nil, int64(len(r.Value)), 10)}}}
	left := valueKept
	for _, h := range r.Headers {
		if left -= len(h.Key) + len(h.Value); left >= 0 {
			c.Headers = append(c.Headers, h)
		}
	}
	c.Value = r.Value[:min(len(r.Value), valueKept)]
	return c
}

// fileLetters appends lines of JSON to a file, fsynced before send returns. A full file becomes <file>.1.
type fileLetters struct {
	path string
	max  int64

	mu   sync.Mutex
	file *os.File
	size int64
}

// fileLine is one letter. Value holds text as it is; where it is not UTF-8, base64 stands in Base64 instead.
type fileLine struct {
	Time      time.Time         `json:"time"`
	Topic     string            `json:"topic"`
	Partition int32             `json:"partition"`
	Offset    int64             `json:"offset"`
	Kind      string            `json:"kind"`
	Reason    string            `json:"reason"`
	Rows      int               `json:"rows_refused"`
	Headers   map[string]string `json:"headers,omitempty"`
	Key       []byte            `json:"key_base64,omitempty"`
	Value     string            `json:"value,omitempty"`
	Base64    []byte            `json:"value_base64,omitempty"`
}

func openFileLetters(path string, max int64) (*fileLetters, error) {
	f := &fileLetters{path: path, max: max}
	return f, f.open()
}

func (f *fileLetters) open() error {
	file, err := os.OpenFile(f.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "dead-letter file")
	}
	st, err := file.Stat()
	if err != nil {
		_ = file.Close()
		return fault.Wrap(err, fault.Unavailable, "dead-letter file")
	}
	f.file, f.size = file, st.Size()
	return nil
}

func (f *fileLetters) send(_ context.Context, all []*letter) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range all {
		line, err := json.Marshal(l.line())
		if err != nil {
			return fault.Wrap(err, fault.Internal, "dead letter")
		}
		if err := f.writeLocked(append(line, '\n')); err != nil {
			return fault.Wrap(err, fault.Unavailable, "dead-letter file")
		}
	}
	return fault.Wrap(f.file.Sync(), fault.Unavailable, "dead-letter file")
}

func (f *fileLetters) writeLocked(line []byte) error {
	if f.file == nil || f.size > 0 && f.size+int64(len(line)) > f.max {
		if err := f.turnLocked(); err != nil {
			return err
		}
	}
	n, err := f.file.Write(line)
	f.size += int64(n)
	return err
}

// turnLocked puts the full file away and begins another.
func (f *fileLetters) turnLocked() error {
	if f.file != nil {
		if err := errors.Join(f.file.Sync(), f.file.Close()); err != nil {
			return err
		}
		f.file = nil
		if err := os.Rename(f.path, f.path+".1"); err != nil {
			return err
		}
	}
	return f.open()
}

func (f *fileLetters) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return nil
	}
	err := f.file.Close()
	f.file = nil
	return err
}

func (l *letter) line() fileLine {
	out := fileLine{Time: time.Now().UTC(), Topic: l.topic, Partition: l.partition, Offset: l.offset, Kind: l.kind.String(), Reason: l.reason, Rows: l.rows}
	if l.record == nil {
		return out
	}
	out.Key = l.record.Key
	if len(l.record.Headers) > 0 {
		out.Headers = map[string]string{}
		for _, h := range l.record.Headers {
			out.Headers[h.Key] = string(h.Value)
		}
	}
	if utf8.Valid(l.record.Value) {
		out.Value = string(l.record.Value)
	} else {
		out.Base64 = l.record.Value
	}
	return out
}
