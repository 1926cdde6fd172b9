package kafka

import (
	"context"
	"errors"
	"strconv"

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
