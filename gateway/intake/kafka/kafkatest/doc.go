// Package kafkatest runs Kafka for tests: a fake cluster in the process, or one node of Apache Kafka. Tests of other
// packages speak to it in strings, so that franz-go stays where it is.
package kafkatest
