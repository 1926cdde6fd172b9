package peer

// OwnTable is the table into which processes write their own metrics. It is the only one into which storage servers insert rows of their own, and whose
// metrics they describe.
const OwnTable = "_spillway"
