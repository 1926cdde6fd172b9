// Package findings names the faults of a cluster and their remedies: the sentences of the status page, and of these sentences the findings of
// the doctor with their remedies.
//
// A sentence is written and recognized here alone, so that the doctor knows the ones that follow from each other.
package findings
