// Package unzstd unpacks zstd bodies from outside into memory of the caller's, in rooms that grow, and recognises a body
// that expands too far before it has cost much.
//
// Decoders of streams allocate the window that a sender declares, up to 8 MiB for 300 bytes; whole-body decoders need the
// unpacked size, which a sender that streams does not declare. So the headers of frames and blocks are read first, which is
// cheap and gives an upper bound of the output:
//
//	frame ──▶ declares its size ─────────────▶ exactly that
//	      └─▶ blocks: raw, repeated ─────────▶ exactly the sizes in their headers
//	                  compressed ────────────▶ at most 128 KiB each, which all but the last have as a rule
//
// If that is no more than real bodies reach, it is the room and the body is decoded once. If it is more, the body is
// either made of small blocks or a bomb: rooms grow fourfold, and into each the part of the body that may fill it is
// decoded first. If that part does not fit, the body is a bomb.
//
// Format: RFC 8878. Non-goals: dictionaries.
package unzstd
