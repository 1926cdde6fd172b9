package findings

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spillwaydb/spillway/gateway/ui"
)

// SomeSizes begins the sentence about a server that did not answer.
const SomeSizes = "Some sizes"

// Problems joins problems of one cause into one sentence.
type Problems struct {
	order []string
	by    map[string][]string
}

// problemNames bounds the names in a sentence.
const problemNames = 5

// problemTexts bounds the sentences: a fault that each table has in words of its own, as with a time, would make a megabyte of them.
const problemTexts = 50

// Add notes a problem of the named thing; the name replaces %s in the format. The rest of the format is not changed.
func (p *Problems) Add(format, name string) {
	if p.by == nil {
		p.by = map[string][]string{}
	}
	if _, known := p.by[format]; !known {
		p.order = append(p.order, format)
	}
	p.by[format] = append(p.by[format], name)
}

// AddPartition notes the faults of a partition of a table.
func (p *Problems) AddPartition(table string, at *ui.Partition) {
	name := fmt.Sprint(table, "/", at.ID)
	if at.Damaged != "" {
		text := "A segment of partition %s is damaged, and the partition is not read: "
		if len(at.Servers) > 1 {
			text = "A segment of a copy of partition %s is damaged, and this copy is not read: "
		}
		p.Add(text+at.Damaged+".", name)
	}
	if at.Differs != "" {
		p.Add("Copies of partition %s hold different rows: "+at.Differs+"; see docs/runbooks/SpillwayCopiesDiffer.md.", name)
	}
	if at.Unflushed != "" {
		p.Add("The rows of partition %s cannot be written into a segment: "+at.Unflushed+".", name)
	}
}

// Texts are the sentences, in the order in which their causes were noted first; beyond problemTexts how many more there are.
func (p *Problems) Texts() []string {
	var out []string
	for i, format := range p.order {
		if i == problemTexts {
			return append(out, fmt.Sprintf("There are %d more problems; most are like these.", len(p.order)-i))
		}
		names := p.by[format]
		list := strings.Join(names[:min(len(names), problemNames)], ", ")
		if more := len(names) - problemNames; more > 0 {
			list += fmt.Sprintf(" and %d more", more)
		}
		out = append(out, strings.Replace(format, "%s", list, 1))
	}
	return out
}

// IsOfSilent reports whether a problem is that sizes are not known of a server, by its name alone or with its address.
func IsOfSilent(problem, id string) bool {
	return strings.HasPrefix(problem, SomeSizes) && (strings.Contains(problem, "server "+id+":") || strings.Contains(problem, "server "+id+" at "))
}

// NoHeartbeat says that a server is silent, and whether sizes are not known for that: where there are copies, another one's are.
func NoHeartbeat(verb string, tables []ui.Table) string {
	text := verb + " no heartbeat"
	if slices.ContainsFunc(tables, func(t ui.Table) bool { return t.Unknown > 0 }) {
		text += "; the sizes of what it alone holds are not known"
	}
	return text
}

// SilentServer begins the problem that a server sends no heartbeat.
func SilentServer(id string) string { return "Storage server " + id + " " }
