// Package topics has the command kafka: how far a running process has read the topics of Kafka.
//
// Fetch asks the process over HTTP, and Print draws the answer.
package topics
