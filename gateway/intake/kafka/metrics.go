package kafka

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics counts what happens here. Labels are finite: cluster and topic as in the settings (topics of a pattern are as
// many as the brokers have); partition a number below partitionLabelsMax, "other" for all beyond; kind a fault's Kind;
// event one of assigned, revoked, lost; outcome ok or error; reason room or order.
type metrics struct {
	c *Consumer

	rebalances, retries, brokerErrors                               *prometheus.CounterVec
	commits, commitErrors, fetchErrors, groupErrors                 prometheus.Counter
	letterErrors, panics, strings, exemplars, topicTurns, partTurns prometheus.Counter
	writes                                                          *prometheus.HistogramVec

	all []prometheus.Collector

	records, bytes, rows, poison, lag, offset, commitAge, joined, inFlight, inFlightMax, laterRows, laterBytes, laterEarly *prometheus.Desc
}

// partitionLabelsMax bounds the partitions of a topic that have series of their own.
const partitionLabelsMax = 1000

func newMetrics(c *Consumer) *metrics {
	m := &metrics{c: c}
	counter := func(name, help string) prometheus.Counter {
		v := prometheus.NewCounter(prometheus.CounterOpts{Name: "spillway_kafka_" + name, Help: help})
		m.all = append(m.all, v)
		return v
	}
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "spillway_kafka_" + name, Help: help}, labels)
		m.all = append(m.all, v)
		return v
	}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("spillway_kafka_"+name, help, labels, nil)
	}
	m.rebalances = vec("rebalances_total", "Changes of our partitions.", "cluster", "event")
	m.retries = vec("write_retries_total", "Work that failed for a passing reason and is tried again.", "cluster", "kind")
	m.brokerErrors = vec("broker_errors_total", "Connections and requests that failed, a refused login among them; they are tried again.", "cluster")
	m.commits = counter("commits_total", "Commits of offsets that brokers accepted.")
	m.commitErrors = counter("commit_errors_total", "Commits of offsets that failed, in whole or in part; they are tried again.")
	m.fetchErrors = counter("fetch_errors_total", "Partitions that could not be read.")
	m.groupErrors = counter("group_errors_total", "Failures to join or keep a group.")
	m.letterErrors = counter("dead_letter_errors_total", "Failures to put records aside; they are tried again.")
	m.panics = counter("decode_panics_total", "Records whose decoding failed by a defect of ours.")
	m.strings = counter("string_fields_total", "String fields that became no sample.")
	m.exemplars = counter("exemplars_refused_total", "Exemplars that were not kept, of series whose samples were.")
	m.topicTurns = counter("topic_pauses_total", "Pauses of topics that had their share of memory.")
	m.partTurns = counter("partition_pauses_total", "Pauses of partitions that had their share of memory.")
	m.writes = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "spillway_kafka_write_duration_seconds",
		Help: "Time of a write until it was acked.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16)}, []string{"outcome"})
	m.all = append(m.all, m.writes)
	m.records = desc("records_total", "Records polled.", "cluster", "topic", "partition")
	m.bytes = desc("record_bytes_total", "Bytes of records polled.", "cluster", "topic", "partition")
	m.rows = desc("rows_total", "Rows acked.", "cluster", "topic", "partition")
	m.poison = desc("poison_records_total", "Records put aside, in whole or for some of their rows.", "cluster", "topic", "partition")
	m.lag = desc("lag_records", "Records between what is done and the end of the partition.", "cluster", "topic", "partition")
	m.offset = desc("committed_offset", "Offset that is committed.", "cluster", "topic", "partition")
	m.commitAge = desc("commit_age_seconds", "Time since a commit succeeded or nothing waited to be committed.", "cluster")
	m.joined = desc("group_joined", "1 while we are in the group, else 0.", "cluster")
	m.inFlight = desc("in_flight_bytes", "Bytes of records that wait or are being written.")
	m.inFlightMax = desc("in_flight_max_bytes", "Bound of in_flight_bytes, less where the process has little memory left.")
	m.laterRows = desc("later_rows", "Rows that wait in their topics until they are due (table set --smear-kafka=wait).")
	m.laterBytes = desc("later_bytes", "Bytes of these rows and of their records; they have the bound of in_flight_bytes, too, apart from them.")
	m.laterEarly = desc("later_early_rows_total", "Rows that left before they were due: as many waited as may (room), or others would have passed them (order).", "reason")
	return m
}

func (m *metrics) wrote(took time.Duration, err error) {
	outcome := "ok"
	if err != nil {
		outcome = "error"
	}
	m.writes.WithLabelValues(outcome).Observe(took.Seconds())
}

func (m *metrics) turned(t turns) {
	m.topicTurns.Add(float64(len(t.pauseTopics)))
	for _, ids := range t.pauseParts {
		m.partTurns.Add(float64(len(ids)))
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.all {
		c.Describe(ch)
	}
	for _, d := range []*prometheus.Desc{m.records, m.bytes, m.rows, m.poison, m.lag, m.offset, m.commitAge, m.joined, m.inFlight, m.inFlightMax, m.laterRows, m.laterBytes, m.laterEarly} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.all {
		c.Collect(ch)
	}
	s := m.c.Status()
	ch <- prometheus.MustNewConstMetric(m.inFlight, prometheus.GaugeValue, float64(s.InFlightBytes))
	ch <- prometheus.MustNewConstMetric(m.inFlightMax, prometheus.GaugeValue, float64(s.InFlightBytesMax))
	ch <- prometheus.MustNewConstMetric(m.laterRows, prometheus.GaugeValue, float64(s.LaterRows))
	ch <- prometheus.MustNewConstMetric(m.laterBytes, prometheus.GaugeValue, float64(s.LaterBytes))
	ch <- prometheus.MustNewConstMetric(m.laterEarly, prometheus.CounterValue, float64(s.early[forRoom]), "room")
	ch <- prometheus.MustNewConstMetric(m.laterEarly, prometheus.CounterValue, float64(s.early[forOrder]), "order")
	for i, cl := range s.Clusters {
		ch <- prometheus.MustNewConstMetric(m.commitAge, prometheus.GaugeValue, cl.CommitAge, cl.Name)
		joined := 0.
		if cl.Member != "" {
			joined = 1
		}
		ch <- prometheus.MustNewConstMetric(m.joined, prometheus.GaugeValue, joined, cl.Name)
		m.collectCounts(ch, cl.Name, m.c.members[i].stats)
		m.collectOffsets(ch, cl)
	}
}

// collectCounts reports the counters of all partitions that we have had.
func (m *metrics) collectCounts(ch chan<- prometheus.Metric, cluster string, s *stats) {
	sums := map[[2]string]*partStats{}
	s.mu.Lock()
	for p, q := range s.parts {
		k := [2]string{p.topic, partLabel(p.id)}
		sum := sums[k]
		if sum == nil {
			sum = &partStats{}
			sums[k] = sum
		}
		sum.records, sum.bytes, sum.rows, sum.poison = sum.records+q.records, sum.bytes+q.bytes, sum.rows+q.rows, sum.poison+q.poison
	}
	s.mu.Unlock()
	for k, q := range sums {
		for d, v := range map[*prometheus.Desc]uint64{m.records: q.records, m.bytes: q.bytes, m.rows: q.rows, m.poison: q.poison} {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), cluster, k[0], k[1])
		}
	}
}

// collectOffsets reports lags and offsets of the partitions that are ours now; an offset of "other" would mean nothing.
func (m *metrics) collectOffsets(ch chan<- prometheus.Metric, cl ClusterStatus) {
	others := map[string]int64{}
	for _, p := range cl.Partitions {
		label := partLabel(p.Partition)
		if label == partOther {
			others[p.Topic] += p.Lag
			continue
		}
		ch <- prometheus.MustNewConstMetric(m.lag, prometheus.GaugeValue, float64(p.Lag), cl.Name, p.Topic, label)
		if p.Committed >= 0 {
			ch <- prometheus.MustNewConstMetric(m.offset, prometheus.GaugeValue, float64(p.Committed), cl.Name, p.Topic, label)
		}
	}
	for topic, lag := range others {
		ch <- prometheus.MustNewConstMetric(m.lag, prometheus.GaugeValue, float64(lag), cl.Name, topic, partOther)
	}
}

const partOther = "other"

func partLabel(id int32) string {
	if id >= partitionLabelsMax {
		return partOther
	}
	return strconv.Itoa(int(id))
}
