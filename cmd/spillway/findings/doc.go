// Package findings says what is wrong with a cluster, and what to do: the sentences of the status page, and of these sentences the findings of
// the doctor with their remedies.
//
// A sentence is written and recognized here alone, so that the doctor knows the ones that follow from each other.
package findings
