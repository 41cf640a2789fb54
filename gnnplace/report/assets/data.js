// What the page holds: graphs of ops, and steps as typed arrays, decoded once.
function decode(text, Kind) {
  const raw = atob(text), held = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) held[i] = raw.charCodeAt(i);
  return new Kind(held.buffer);
}

class Graph {
  constructor(data) {
    Object.assign(this, data);
    this.module = decode(data.module, Int32Array);
    this.kind = decode(data.kind, Uint8Array);
    this.reason = decode(data.reason, Int32Array);
    this.state = decode(data.state, Float32Array);
    this.made = decode(data.made, Float32Array);
    this.seconds = decode(data.seconds, Float32Array); // by device kind, then by op
    this.found = new Uint8Array(this.names.length); // what the search matches
    if (data.layout) this.layout = decodeLayout(data.layout);
  }
  moduleOf(op) { return this.modules[this.module[op]]; }
}

function decodeLayout(data) {
  return { x: decode(data.x, Float32Array), y: decode(data.y, Float32Array),
    size: decode(data.size, Float32Array), edges: decode(data.edges, Int32Array), tallest: data.tallest };
}

class Step {
  constructor(data, graphs) {
    Object.assign(this, data);
    this.graph = graphs[data.graph];
    this.op = decode(data.op, Int32Array);
    this.device = decode(data.device, Uint16Array);
    const instants = text => Float64Array.from(decode(text, Uint32Array), ticks => data.origin + ticks * data.tick);
    this.start = instants(data.start);
    this.finish = instants(data.finish);
    this.critical = decode(data.critical, Uint8Array);
    this.cause = { kind: decode(data.cause.kind, Uint8Array), op: decode(data.cause.op, Int32Array),
      transfer: decode(data.cause.transfer, Int32Array) };
    const t = data.transfers;
    this.transfers = { op: decode(t.op, Int32Array), source: decode(t.source, Uint16Array), target: decode(t.target, Uint16Array),
      start: instants(t.start), finish: instants(t.finish), bytes: decode(t.bytes, Float32Array) };
    this.memory = data.memory.map(([times, held]) => [instants(times), decode(held, Float32Array)]);
    this.peaks = this.memory.map(([, held]) => held.reduce((most, value) => Math.max(most, value), 0));
    this.index();
  }
  // Spans of each device by their start, each span's place there, and the span of each op.
  index() {
    const lanes = this.devices.map(() => []);
    const order = Array.from(this.op.keys()).sort((a, b) => this.start[a] - this.start[b] || this.finish[a] - this.finish[b]);
    this.place = new Int32Array(this.op.length);
    this.spanOf = new Int32Array(this.graph.names.length).fill(-1);
    for (const span of order) {
      const lane = lanes[this.device[span]];
      this.place[span] = lane.length;
      lane.push(span);
      this.spanOf[this.op[span]] = span;
    }
    this.lanes = lanes.map(lane => Int32Array.from(lane));
  }
  // Place in a lane of the first span that ends after an instant.
  firstAfter(lane, instant) {
    let low = 0, high = lane.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.finish[lane[middle]] < instant) low = middle + 1; else high = middle;
    }
    return low;
  }
  spanAt(device, instant, slack) {
    const lane = this.lanes[device];
    let best = -1, near = slack;
    for (let i = Math.max(0, this.firstAfter(lane, instant - slack) - 1); i < lane.length; i++) {
      const span = lane[i];
      if (this.start[span] > instant + slack) break;
      const away = Math.max(this.start[span] - instant, instant - this.finish[span], 0);
      if (away < near || (away === 0 && near === 0)) { near = away; best = span; }
    }
    return best;
  }
  busy(device) { return this.lanes[device].reduce((sum, span) => sum + this.finish[span] - this.start[span], 0); }
}

function readData() {
  const data = JSON.parse(byId("data").textContent);
  const graphs = data.graphs.map(graph => new Graph(graph));
  return { graphs, steps: data.steps.map(step => new Step(step, graphs)), beside: data.beside };
}
