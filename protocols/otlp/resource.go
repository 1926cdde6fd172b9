package otlp

import (
	"cmp"
	"encoding/binary"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/wire"
)

// Attributes of a resource that identify it.
const (
	attrServiceName      = "service.name"
	attrServiceNamespace = "service.namespace"
	attrServiceInstance  = "service.instance.id"
)

// resource is the part that the resource being read adds to its series.
type resource struct {
	raw           []byte // the message, a part of the body
	job, instance []byte
	promoted      []pair
	sum           point.Hash // of the three
	fault         error      // why none of its series can be accepted

	// Times of its data points, for target_info; first 0: none was accepted.
	first, last point.Nanos

	arena []byte // texts that the above refer to
}

func (r *resource) forget() {
	clear(r.promoted[:cap(r.promoted)])
	*r = resource{promoted: r.promoted[:0], arena: r.arena[:0]}
	if cap(r.arena) > scratchKept {
		r.arena = nil
	}
}

// saw notes that a data point at t was accepted.
func (r *resource) saw(t point.Nanos) {
	if r.first == 0 || t < r.first {
		r.first = t
	}
	r.last = max(r.last, t)
}

// beginResource reads the attributes that become labels.
func (d *Decoder) beginResource(raw []byte) error {
	r := &d.res
	r.forget()
	r.raw = raw
	d.arena = d.arena[:0]
	var name, namespace []byte
	err := each(raw, 1, func(kv []byte) error {
		key, value, err := readKeyValue(kv)
		if err != nil {
			return err
		}
		promoted := r.fault == nil && d.t.promotes(key)
		if !isIdentifying(key) && !promoted {
			return nil
		}
		text, reason, err := d.valueText(value)
		if err != nil || reason != nil {
			r.fault = cmp.Or(r.fault, reason)
			return err
		}
		switch string(key) {
		case attrServiceName:
			name = text
		case attrServiceNamespace:
			namespace = text
		case attrServiceInstance:
			r.instance = text
		}
		if promoted {
			label, err := d.names.find(d.t, key)
			if err != nil {
				r.fault = err
				return nil
			}
			if len(r.promoted) < point.LabelsMax {
				r.promoted = set(r.promoted, label, text)
			} else {
				r.fault = errManyAttributes
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	r.job = name
	if name != nil && namespace != nil {
		from := len(d.arena)
		d.arena = append(append(append(d.arena, namespace...), '/'), name...)
		r.job = d.arena[from:]
	}
	// The arena is used up again by each data point; the resource outlives them.
	r.arena, d.arena = d.arena, r.arena[:0]
	d.sumResource()
	return nil
}

func isIdentifying(key []byte) bool {
	return string(key) == attrServiceName || string(key) == attrServiceNamespace || string(key) == attrServiceInstance
}

// sumResource hashes the labels that the resource adds, not the resource: attributes that are no labels, such as a
// process number, must not make all its series look new.
func (d *Decoder) sumResource() {
	r := &d.res
	k := appendPart(append(d.key[:0], domainResource), r.job)
	k = appendPart(k, r.instance)
	k = appendPairs(k, r.promoted)
	r.sum = d.b.Dict.Hash(k)
	d.key = k
}

func appendPairs(b []byte, pairs []pair) []byte {
	for _, p := range pairs {
		b = appendPart(appendPart(b, p.name), p.value)
	}
	return b
}

func appendPart(b, part []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(part))), part...)
}

// scope is the part that the instrumentation scope being read adds to its series.
type scope struct {
	labels []pair
	sum    point.Hash
	fault  error
	arena  []byte
}

func (s *scope) forget() {
	clear(s.labels[:cap(s.labels)])
	*s = scope{labels: s.labels[:0], arena: s.arena[:0]}
	if cap(s.arena) > scratchKept {
		s.arena = nil
	}
}

var (
	labelScopeName    = []byte("otel_scope_name")
	labelScopeVersion = []byte("otel_scope_version")
	labelScopeSchema  = []byte("otel_scope_schema_url")
)

const scopePrefix = "otel_scope_"

// beginScope reads the scope's labels, if there are to be any.
func (d *Decoder) beginScope(m, schema []byte) error {
	s := &d.scope
	s.forget()
	if !d.t.settings.PromoteScopeMetadata {
		return nil
	}
	d.arena = d.arena[:0]
	var name, version []byte
	for i := 0; i < len(m); {
		f, next, err := wire.Read(m, i)
		switch {
		case err != nil:
		case f.Num == 1:
			name = f.Bytes(&err)
		case f.Num == 2:
			version = f.Bytes(&err)
		case f.Num == 3:
			var reason error
			if reason, err = d.scopeAttribute(f.Bytes(&err)); reason != nil {
				s.fault = reason
			}
		}
		if err != nil {
			return err
		}
		i = next
	}
	if len(name) == 0 {
		s.labels, s.fault = s.labels[:0], nil
		return nil
	}
	s.labels = set(s.labels, labelScopeName, name)
	s.labels = set(s.labels, labelScopeVersion, version)
	s.labels = set(s.labels, labelScopeSchema, schema)
	s.arena, d.arena = d.arena, s.arena[:0]
	d.key = appendPairs(append(d.key[:0], domainScope), s.labels)
	s.sum = d.b.Dict.Hash(d.key)
	return nil
}

func (d *Decoder) scopeAttribute(kv []byte) (reason, err error) {
	s := &d.scope
	if s.fault != nil {
		return nil, nil
	}
	key, value, err := readKeyValue(kv)
	if err != nil {
		return nil, err
	}
	text, reason, err := d.valueText(value)
	if reason != nil || err != nil {
		return reason, err
	}
	if len(s.labels) >= point.LabelsMax {
		return errManyAttributes, nil
	}
	from := len(d.arena)
	d.arena = append(append(d.arena, scopePrefix...), key...)
	label, reason := d.names.find(d.t, d.arena[from:])
	if reason != nil {
		return reason, nil
	}
	s.labels = set(s.labels, label, text)
	return nil, nil
}

// targetSample is a sample of target_info; resources that differ only in attributes that become no labels share one.
type targetSample struct {
	id point.SeriesID
	t  point.Nanos
}

// TargetInfoSamplesMax bounds the samples of target_info for one resource: two days at the default interval. Where a
// request spans more, its latest part has them.
const TargetInfoSamplesMax = 1152

var (
	targetName = []byte("target_info")
	targetRow  = point.MetadataRow{Metric: "target_info", Type: "gauge", Help: "Target metadata"}
)

// targetInfo adds the series target_info of the resource just read, as long as its data points reach.
func (d *Decoder) targetInfo() error {
	r := &d.res
	if r.first == 0 || d.t.settings.DisableTargetInfo {
		return nil
	}
	d.key = append(append(d.key[:0], domainTarget), d.t.mark[:]...)
	d.key = appendHash(d.key, d.b.Dict.Hash(r.raw))
	h := d.b.Dict.Hash(d.key)
	id, known := d.b.Dict.Lookup(h)
	if !known {
		labels, err := d.targetLabels()
		if err == nil && labels == "" {
			return nil
		}
		if err == nil {
			id, err = d.b.Dict.Intern(h, labels)
		}
		if err != nil {
			d.refuseAt(0, 0, err, func() string { return "target_info of " + cutText(escaped(r.job)) })
			return nil
		}
	}
	step := int64(d.t.settings.TargetInfoInterval)
	from := r.first
	if n := (r.last - from) / step; n >= TargetInfoSamplesMax {
		from += (n - TargetInfoSamplesMax + 1) * step
	}
	for t := from; t < r.last; t += step {
		if err := d.targetSample(id, t); err != nil {
			return err
		}
		if r.last-t <= step { // t + step could wrap, and there would be no end
			break
		}
	}
	return d.targetSample(id, r.last)
}

func (d *Decoder) targetSample(id point.SeriesID, t point.Nanos) error {
	at := targetSample{id, t}
	if _, ok := d.seen[at]; ok {
		return nil
	}
	if len(d.seen) == 0 {
		if err := d.spend(1); err != nil {
			return err
		}
		d.b.Metadata = append(d.b.Metadata, targetRow)
	}
	d.seen[at] = struct{}{}
	if err := d.spend(1); err != nil {
		return err
	}
	d.b.Append(id, t, 1)
	return nil
}

// targetLabels gives the labels of target_info, "" if the resource has nothing to report or nothing that identifies
// it. Errors are Invalid.
func (d *Decoder) targetLabels() (point.Labels, error) {
	r := &d.res
	d.arena = d.arena[:0]
	pairs, reason, err := d.readAttributes(d.pairs[:0], r.raw, 1)
	if err != nil {
		return "", fault.Wrap(err, fault.Invalid, "attributes")
	}
	if reason != nil {
		return "", reason
	}
	descriptive := false
	for _, p := range pairs {
		descriptive = descriptive || !isIdentifying(p.name)
	}
	if !descriptive || len(r.job) == 0 && len(r.instance) == 0 {
		return "", nil
	}
	skip := isIdentifying
	if d.t.settings.KeepIdentifyingResourceAttributes {
		skip = nil
	}
	if pairs, reason = d.toLabels(pairs, skip); reason != nil {
		return "", reason
	}
	if len(r.job) > 0 {
		pairs = set(pairs, labelJob, r.job)
	}
	if len(r.instance) > 0 {
		pairs = set(pairs, labelInstance, r.instance)
	}
	d.pairs = pairs
	d.labels.Reset()
	for _, p := range pairs {
		d.labels.Add(p.name, p.value)
	}
	d.labels.Add(labelName, targetName)
	return d.labels.Labels()
}
