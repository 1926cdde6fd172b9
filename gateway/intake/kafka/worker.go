package kafka

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/spillwaydb/spillway/gateway/admit"
	"github.com/spillwaydb/spillway/gateway/intake"
	"github.com/spillwaydb/spillway/gateway/limits"
	"github.com/spillwaydb/spillway/gateway/tablename"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/record"
	"github.com/spillwaydb/spillway/smear"
)

// worker turns work into writes. It belongs to one goroutine.
type worker struct {
	c       *Consumer
	decoder *record.Decoder
	scratch scratch
	spare   *point.Batch // of the write before, empty; nil: none
	long    bool         // it holds Consumer.long
	booked  int64        // of Consumer.decoding

	// Owned by the call of process under way.
	ctx    context.Context
	m      *member
	tables map[string]*tableWrite
	rows   int   // that their batches have memory for
	worst  error // why some records have to be retried
	// stuck are partitions with a record that has to be retried. The records behind it wait: else the older of two values at one timestamp would be written
	// last.
	stuck map[partition]bool
	lanes map[partition]*lane // of the work
	delay []point.Nanos       // scratch
}

// waiter is a Table whose rows may wait in their topic until they are due (smear.KafkaWait). Delays returns how long each row waits from now on: the float
// rows, then the histograms. A delay below 0: the row does not wait, though others of its series do. false: no row waits.
type waiter interface {
	Delays(now time.Time, b *point.Batch, delays []point.Nanos) ([]point.Nanos, bool)
}

// tableWrite collects the rows of many records for one table. Each record is an item of the batch.
type tableWrite struct {
	name  string
	table intake.Table
	level point.Level
	batch *point.Batch
	parts []part
	known int // series of the batch's Dict before its records were decoded
	rows  int // that the batch had memory for when that was last counted

	ticket limits.Ticket
}

// part is the part of a tableWrite that came from one record.
type part struct {
	b *batch
	i int // number of the record in b
	// Where its rows end in the batch; they begin where the part before ends.
	rows, hists, exemplars, metadata int

	done bool  // of an item: its rows are settled
	of   *item // in a write: it is part at of an item; nil: it is all there is of its record
	at   int
}

// store settles a part, of which no more rows are to be written, and with its last part the record.
func (p *part) store() {
	if p.of != nil {
		p.of.parts[p.at].done = true
		if p.b.open[p.i]--; p.b.open[p.i] > 0 {
			return
		}
	}
	p.b.store(p.i)
}

// reject puts the whole record of a part aside.
func (p *part) reject(err error) {
	if p.of == nil {
		p.b.reject(p.i, err)
		return
	}
	p.b.lay(p.i, 0, fault.KindOf(err), err.Error())
	p.store()
}

// internalTries is how often work is retried that fails for an unnamed reason. Beyond it the record is put aside: a defect
// in this program that one record finds must not stop its partition.
const internalTries = 5

// passing reports whether a retry may help.
func (w *worker) passing(err error, attempts int) bool {
	switch fault.KindOf(err) {
	case fault.Invalid, fault.TooLarge, fault.NotFound:
		return false
	case fault.Internal:
		return attempts < internalTries
	}
	return true
}

// process settles as much of the work as it can; the error says why the rest has to be retried.
func (w *worker) process(ctx context.Context, m *member, job *work) error {
	w.ctx, w.m, w.worst = ctx, m, nil
	w.tables, w.stuck, w.lanes = map[string]*tableWrite{}, map[partition]bool{}, map[partition]*lane{}
	for _, l := range job.lanes {
		w.lanes[l.partition] = l
	}
	defer func() {
		for _, t := range w.tables {
			w.put(t.batch)
			t.ticket.End()
		}
		w.tables, w.rows, w.stuck, w.lanes = nil, 0, nil, nil
		if w.large(w.scratch.own.ids) {
			w.scratch.own = columns{}
		}
		w.book(0) // the buffers that stay are small
	}()
	for _, it := range job.items {
		if !w.stuck[it.partition] {
			w.deliver(it, job.attempts)
		}
	}
	for _, b := range job.batches {
		b.begin()
		for i, r := range b.records {
			if job.items == nil && b.fates[i] == pending && !w.stuck[b.ticket.partition] {
				w.read(b, i, r, job.attempts)
			}
		}
	}
	for _, t := range w.tables {
		w.write(t, job.attempts)
	}
	w.putAside(job)
	return w.worst
}

// batch returns an empty batch, if possible that of the write before. The pool drops batches at every second collection,
// and fetches bring many: a batch that grows from empty costs more than its rows.
func (w *worker) batch(d *point.Dict) *point.Batch {
	b := w.spare
	if b == nil {
		return point.GetBatch(d)
	}
	w.spare = nil
	b.Dict = d
	return b
}

// put returns a batch. A worker keeps no batch larger than the records of two writes.
func (w *worker) put(b *point.Batch) {
	if w.spare != nil || w.large(b.IDs) || cap(b.Hists)+cap(b.Exemplars)+cap(b.Metadata) > 0 {
		b.Put()
		return
	}
	b.Reset()
	w.spare = b
}

// begin makes room for the fates of a batch's records, once.
func (b *batch) begin() {
	switch {
	case b.fates != nil:
	case b.poison != nil:
		b.fates, b.letters = []fate{stored}, map[int]*letter{0: b.poison}
	default:
		b.fates = make([]fate, len(b.records))
	}
}

// fail records that records of a partition have to be retried, and those behind them.
func (w *worker) fail(p partition, err error) {
	w.stuck[p] = true
	w.blame(err)
}

func (w *worker) blame(err error) {
	if w.worst == nil {
		w.worst = err
	}
}

// lay notes that a record is to be put aside. Its good rows, if any, are written as well.
func (b *batch) lay(i, rows int, kind fault.Kind, reason string) {
	r := b.records[i]
	if b.letters == nil {
		b.letters = map[int]*letter{}
	}
	if l := b.letters[i]; l != nil {
		l.rows += rows
		return
	}
	b.letters[i] = &letter{topic: r.Topic, partition: r.Partition, offset: r.Offset, record: r, rows: rows, kind: kind, reason: reason}
}

// store records that no more rows of a record are to be written.
func (b *batch) store(i int) {
	b.fates[i] = settled
	if b.letters[i] != nil {
		b.fates[i] = stored
	}
}

// reject puts a whole record aside.
func (b *batch) reject(i int, err error) {
	delete(b.letters, i)
	b.lay(i, 0, fault.KindOf(err), err.Error())
	b.store(i)
}

// read decodes a record and adds its rows to those of its table.
func (w *worker) read(b *batch, i int, r *kgo.Record, attempts int) {
	delete(b.letters, i) // this try finds again the letters of an earlier one
	t, o, err := w.target(r)
	if err == nil {
		w.scratch.begin(t.batch)
		defer w.scratch.end()
		err = w.decode(r, &o, t)
	}
	if err != nil {
		if w.passing(err, attempts) {
			w.fail(b.ticket.partition, err)
		} else {
			b.reject(i, err)
		}
		return
	}
	s := w.scratch.Batch
	if err := again(s); err != nil {
		w.fail(b.ticket.partition, err)
		return
	}
	w.c.metrics.exemplars.Add(float64(s.RefusedExemplars))
	if s.RefusedMore() { // exemplars alone are not worth a dead letter
		b.lay(i, s.RefusedRows, kindOf(s), reasonOf(s))
	}
	if o.Atomic && s.RefusedRows > 0 {
		b.store(i)
		return
	}
	b.countStrings(w, s)
	if s.Rows()+len(s.Exemplars)+len(s.Metadata) == 0 {
		b.store(i)
		return
	}
	if w.wait(t, b, i, s, point.Smear(o.Smear), attempts) {
		return
	}
	t.add(b, i, s, point.Smear(o.Smear))
	w.countRows(t)
	if t.batch.Rows() >= w.c.settings.WriteRowsMax {
		w.write(t, attempts)
	}
}

// wait plans when the rows of a record are written, if they have to wait, or if they would overtake rows that wait.
func (w *worker) wait(t *tableWrite, b *batch, i int, s *point.Batch, wish point.Smear, attempts int) bool {
	l := w.lanes[b.ticket.partition]
	if l == nil {
		return false
	}
	waiting, now := false, time.Now() // one time for both: delays fall as time goes
	w.delay = w.delay[:0]
	if table, ok := t.table.(waiter); ok {
		s.Smear = wish
		w.delay, waiting = table.Delays(time.Unix(0, w.c.deps.Clock.ReadAt(now).Now), s, w.delay)
	}
	if !waiting && !l.later.passes(t.name, s, nil) {
		return false
	}
	if w.write(t, attempts); w.stuck[b.ticket.partition] { // records before, which did not wait: those that are due would pass them if they had to be tried again
		return true
	}
	w.noteFresh(t, b, s)
	l.later.plan(b, i, t.name, s, w.delay, func(delay point.Nanos) time.Time {
		return dueAt(w.c.base, now, time.Duration(delay), time.Duration(smear.Tick))
	})
	return true
}

// deliver adds the rows of an item that is due to those of its table.
func (w *worker) deliver(it *item, attempts int) {
	topic := w.m.cluster.topic(it.partition.topic)
	if topic == nil {
		fault.Bug("rows of topic %s wait, which is not one of the settings", it.partition.topic)
	}
	t, err := w.open(it.table, topic)
	switch {
	case err != nil && w.passing(err, attempts):
		w.fail(it.partition, err)
		return
	case err != nil:
		for k := range it.parts {
			if p := (part{b: it.parts[k].b, i: it.parts[k].i, of: it, at: k}); !it.parts[k].done {
				p.reject(err)
			}
		}
		return
	}
	if t.batch.Dict != it.rows.Dict { // it waited for longer than its dictionary is in use, or the other did not
		w.write(t, attempts)
		if t.batch.Dict = it.rows.Dict; w.stuck[it.partition] {
			return
		}
	}
	t.known = t.batch.Dict.Len() // new series were noted when they came
	from := part{}
	for k, p := range it.parts {
		if !p.done {
			s := between(it.rows, from, p)
			t.add(p.b, p.i, &s, point.SmearWaited)
			w.countRows(t)
			last := &t.parts[len(t.parts)-1]
			last.of, last.at = it, k
			if t.batch.Rows() >= w.c.settings.WriteRowsMax {
				if w.write(t, attempts); w.stuck[it.partition] {
					return
				}
			}
		}
		from = p
	}
}

func (b *batch) countStrings(w *worker, s *point.Batch) {
	if s.StringFields > 0 {
		w.c.metrics.strings.Add(float64(s.StringFields))
	}
}

// target returns the table, and the topic's settings as modified by the record's headers.
func (w *worker) target(r *kgo.Record) (*tableWrite, record.Options, error) {
	topic := w.m.cluster.topic(r.Topic)
	if topic == nil {
		return nil, record.Options{}, fault.Errorf(fault.Invalid, "topic %s is not one of the settings", r.Topic)
	}
	o := topic.options()
	for _, h := range r.Headers {
		if err := o.Header(h.Key, h.Value); err != nil {
			return nil, o, err
		}
	}
	t, err := w.open(o.Table, topic)
	return t, o, err
}

// open returns the write of a table.
func (w *worker) open(name string, topic *Topic) (*tableWrite, error) {
	if t := w.tables[name]; t != nil {
		return t, nil
	}
	if err := tablename.Check(name); err != nil {
		return nil, err
	}
	// A reached limit is a passing error: the records behind it wait, and its partitions are paused.
	ticket, err := w.c.deps.Limits.Begin(name, -1)
	if err != nil {
		return nil, err
	}
	table, err := w.c.deps.Writer.Table(w.ctx, name)
	if err != nil {
		ticket.End()
		return nil, err
	}
	ticket.Found(name)
	t := &tableWrite{name: name, table: table, level: topic.level, batch: w.batch(table.Dict()), ticket: ticket}
	t.known = t.batch.Dict.Len()
	w.tables[name] = t
	w.countRows(t)
	return t, nil
}

// decode fills w.scratch. A defect that a record finds must not end the process, since the record would come again.
func (w *worker) decode(r *kgo.Record, o *record.Options, t *tableWrite) (err error) {
	s := w.scratch.Batch
	defer func() {
		if p := recover(); p != nil {
			w.c.metrics.panics.Inc()
			w.c.log.Error("a record could not be decoded because of a defect; it is put aside, please report it",
				"topic", r.Topic, "partition", r.Partition, "offset", r.Offset, "panic", p, "stack", string(debug.Stack()))
			err = fault.Errorf(fault.Invalid, "decoding failed by a defect of ours: %v", p)
			if err := w.renew(); err != nil {
				fault.Bug("settings that were checked: %v", err)
			}
		}
	}()
	defer w.endLong()
	if r.Timestamp.UnixMilli() < 0 { // a producer of message format 0 gives none: its rows are of now, as where they come by HTTP, and at each try of the same time
		r.Timestamp = w.c.deps.Clock.Now()
	}
	if err := w.decoder.Decode(r.Value, o, r.Timestamp.UnixNano(), s); err != nil {
		return err
	}
	t.ticket.More(len(r.Key) + len(r.Value))
	var senders []point.Sender
	if w.c.deps.Replicas != nil {
		_, senders = w.c.deps.Replicas.Resolve(o.Table, s) // the rows count as accepted
	}
	t.ticket.Samples(s.Rows())
	now := w.c.deps.Clock.Read()
	lo, hi := t.table.Bounds(now.Earliest)
	w.c.deps.Clock.Note(s.Times, now)
	s.RemoveDropped() // the rows count as accepted
	if _, err = t.ticket.Table().Admit(w.c.settings.Admit, s, now, admit.Bounds{Lo: lo, Hi: hi}); err != nil {
		return err
	}
	if left := s.SendersLeft(senders); len(left) > 0 {
		w.c.deps.Replicas.Accepted(o.Table, left)
	}
	return nil
}

// renew makes scratch memory, in the place of some that a panic may have left in disorder.
func (w *worker) renew() error {
	d, err := record.NewDecoder(w.c.settings.Record)
	if err != nil {
		return err
	}
	if w.decoder != nil {
		w.decoder.Close()
	}
	w.scratch = scratch{Batch: new(point.Batch)}
	w.decoder = d
	d.OnGrowth(w.unpacks)
	return nil
}

// longRecord is the size from which records are unpacked one after the other, by all workers, in bytes: each worker keeps so much for the next (record.Decoder).
const longRecord = 4 << 20

// unpacks is called before so many bytes are allocated for a record that is unpacked.
func (w *worker) unpacks(bytes int) {
	if bytes > longRecord && !w.long {
		w.c.long.Lock() // held until the record is decoded, which waits for nothing
		w.long = true
	}
	w.book(int64(bytes) + w.rowBytes())
}

// endLong ends the turn of a long record.
func (w *worker) endLong() {
	w.book(int64(w.decoder.HeldBytes()) + w.rowBytes())
	if w.long {
		w.long = false
		w.c.long.Unlock()
	}
}

// rowSize is the memory of a row, in bytes.
const rowSize = 20

// large reports whether rows need more than the records of two writes.
func (w *worker) large(ids []point.SeriesID) bool {
	return int64(cap(ids))*rowSize > 2*w.c.settings.WriteBytesMax
}

// rowBytes is the memory for rows that are decoded and not written, and that is kept for others.
func (w *worker) rowBytes() int64 {
	n := cap(w.scratch.own.ids)
	if w.spare != nil {
		n += cap(w.spare.IDs)
	}
	if lent := w.scratch.lent.ids; w.scratch.IDs != nil && !same(w.scratch.IDs, lent) {
		n += cap(w.scratch.IDs)
	}
	return rowSize * int64(n+w.rows)
}

// countRows is called after a table's batch may have grown. Each record needs the sum, so it is kept: going through 100 tables made a record of one line cost
// 60 % more (BenchmarkWorkerTables, 2026-12-01).
func (w *worker) countRows(t *tableWrite) {
	n := cap(t.batch.IDs)
	w.rows += n - t.rows
	t.rows = n
}

// book counts what the worker holds.
func (w *worker) book(bytes int64) {
	more := bytes - w.booked
	w.booked = bytes
	if w.c.decoding.Add(more); more > 0 {
		w.c.cover(w.c.raw() + w.c.polled.Load() + w.c.unpacked.held())
	}
}

// again is the error of a row that was refused for a passing reason, such as a full dictionary: then the whole record is
// tried again, which does no harm to the rows that were good.
func again(s *point.Batch) error {
	for _, r := range s.Refused {
		if r.Kind != fault.Invalid && r.Kind != fault.TooLarge {
			return fault.Errorf(r.Kind, "%s", r.Reason)
		}
	}
	return nil
}

func kindOf(s *point.Batch) fault.Kind {
	if r, ok := s.FirstRefusedRow(); ok {
		return r.Kind
	}
	return fault.Invalid
}

func reasonOf(s *point.Batch) string {
	r, ok := s.FirstRefusedRow()
	if !ok {
		return fmt.Sprintf("%d rows refused", s.RefusedRows)
	}
	text := fmt.Sprintf("%d refused, %d rows kept; item %d: %s", s.RefusedRows, s.Rows(), r.Item, r.Reason)
	if r.Text != "" {
		text += ": " + r.Text
	}
	return text
}

// add puts a record's rows behind the others, without a copy if they lie there already (scratch). So the rows of small records are written together, and each
// record is judged alone. If one record must not wait, the write as a whole does not: a write for each change of the wish would be a write for each record
// where two producers alternate.
func (t *tableWrite) add(b *batch, i int, s *point.Batch, smear point.Smear) {
	d := t.batch
	if len(t.parts) > 0 {
		smear = d.Smear.With(smear)
	}
	d.Smear = smear
	d.BeginItem()
	d.IDs, d.Times, d.Values = join(d.IDs, s.IDs), join(d.Times, s.Times), join(d.Values, s.Values)
	d.Hists = append(d.Hists, s.Hists...)
	d.Exemplars = append(d.Exemplars, s.Exemplars...)
	d.Metadata = append(d.Metadata, s.Metadata...)
	t.parts = append(t.parts, part{b: b, i: i, rows: len(d.IDs), hists: len(d.Hists), exemplars: len(d.Exemplars), metadata: len(d.Metadata)})
}

// write writes the collected rows, and starts an empty batch.
func (w *worker) write(t *tableWrite, attempts int) {
	if len(t.parts) == 0 {
		return
	}
	fresh := w.fresh(t)
	err := w.commit(t)
	switch {
	case err == nil:
		w.stored(t)
		w.noteSenders(t, fresh)
	case w.passing(err, attempts):
		for _, p := range t.parts {
			w.fail(p.b.ticket.partition, err)
		}
	case len(t.parts) == 1:
		t.parts[0].reject(err)
	default:
		w.writeSingly(t, attempts)
	}
	dict := t.batch.Dict
	t.batch.Reset()
	t.batch.Dict, t.known = dict, dict.Len()
	t.parts = t.parts[:0]
}

func (w *worker) commit(t *tableWrite) error {
	ctx, cancel := context.WithTimeout(w.ctx, time.Duration(w.m.cluster.WriteTimeMax))
	defer cancel()
	start := time.Now()
	err := t.table.Write(ctx, t.batch, t.level)
	w.c.metrics.wrote(time.Since(start), err)
	return err
}

// stored settles the records of a write. Rows that the table refused at the last moment are found by their item.
func (w *worker) stored(t *tableWrite) {
	for _, r := range t.batch.Refused {
		if u := &t.batch.Unkept; len(u.Floats)+len(u.Hists) == 0 && r.Item > 0 && r.Item <= len(t.parts) {
			p := t.parts[r.Item-1]
			p.b.lay(p.i, 1, r.Kind, r.Reason)
		}
	}
	w.layUnkept(t)
	before := 0
	for _, p := range t.parts {
		p.store()
		w.m.stats.rows(p.b.ticket.partition, p.rows+p.hists-before)
		t.ticket.Accepted(p.rows + p.hists - before)
		before = p.rows + p.hists
	}
}

// layUnkept puts aside every record of which a storage server refused rows, however many: the reasons in a batch are only the first.
func (w *worker) layUnkept(t *tableWrite) {
	u := &t.batch.Unkept
	if len(u.Floats)+len(u.Hists) == 0 {
		return
	}
	kind, reason := fault.Invalid, "storage servers refused it"
	if len(t.batch.Refused) > 0 {
		kind, reason = t.batch.Refused[0].Kind, t.batch.Refused[0].Reason
	}
	floats, hists := u.Floats, u.Hists
	for _, p := range t.parts {
		n := 0
		for ; len(floats) > 0 && floats[0] < p.rows; n++ {
			floats = floats[1:]
		}
		for ; len(hists) > 0 && hists[0] < p.hists; n++ {
			hists = hists[1:]
		}
		if n > 0 {
			p.b.lay(p.i, n, kind, reason)
		}
	}
}

// between is the part of b between the ends of two others.
func between(b *point.Batch, from, to part) point.Batch {
	return point.Batch{
		Dict: b.Dict, IDs: b.IDs[from.rows:to.rows], Times: b.Times[from.rows:to.rows],
		Values: b.Values[from.rows:to.rows], Hists: b.Hists[from.hists:to.hists],
		Exemplars: b.Exemplars[from.exemplars:to.exemplars], Metadata: b.Metadata[from.metadata:to.metadata],
	}
}

// writeSingly finds the record that makes a write impossible.
func (w *worker) writeSingly(t *tableWrite, attempts int) {
	from := part{}
	one := &tableWrite{name: t.name, table: t.table, level: t.level, batch: point.GetBatch(t.batch.Dict), ticket: t.ticket} // t ends the ticket
	defer one.batch.Put()
	for _, p := range t.parts {
		if w.stuck[p.b.ticket.partition] {
			from = p
			continue
		}
		s := between(t.batch, from, p)
		one.add(p.b, p.i, &s, t.batch.Smear)
		one.parts[0].of, one.parts[0].at = p.of, p.at
		one.known = t.known
		w.write(one, attempts)
		from = p
	}
}

// putAside sends the letters of all records that are stored except for these.
func (w *worker) putAside(job *work) {
	var all []*letter
	for _, b := range job.batches {
		for i, f := range b.fates {
			if f == stored {
				all = append(all, b.letters[i])
			}
		}
	}
	if len(all) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(w.ctx, time.Duration(w.m.cluster.WriteTimeMax))
	defer cancel()
	if err := w.m.letters.send(ctx, all); err != nil {
		w.c.metrics.letterErrors.Inc()
		w.blame(err)
		return
	}
	for _, b := range job.batches {
		for i, f := range b.fates {
			if f == stored {
				w.m.stats.poison(b.ticket.partition, b.letters[i])
				b.fates[i] = settled
			}
		}
	}
}
