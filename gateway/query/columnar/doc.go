// Package columnar evaluates the common part of PromQL over columns: it makes plans of expressions, and the engine's series
// of their results.
//
// Chains of selector, range function, operator with a number, and aggregation are evaluated by package columns, here or
// where the rows are. Trees join chains by operations between vectors.
//
// Compile refuses an expression with parts that are not evaluated here. Run gives up with ErrAbandoned on data that is not
// evaluated here, and the engine evaluates the whole expression.
package columnar
