// Package diagram draws diagrams of values over time as SVG and as PNG, with the same calls and without a font or a library: its letters are
// embedded.
//
// A drawing is made on a Sheet. A Panel turns times and values into places on it, and draws the grid, the marks of the axis of time and a
// legend; the caller draws the contents of the panel.
package diagram
