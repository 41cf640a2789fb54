// The computation graph from left to right, coloured by device; edges that cross devices stand out.
const GRAPH_EDGE = 14;

function paintGraph() {
  const step = view.steps[0], graph = step.graph, drawn = graph.layout && step.op.length && step.devices.length > 1;
  byId("graphbox").hidden = !drawn;
  if (!drawn) return;
  const layout = graph.layout, height = Math.max(220, Math.min(520, 60 + 16 * layout.tallest)), [pen, width] = fitted(byId("graph"), height);
  const place = op => [GRAPH_EDGE + layout.x[op] * (width - 2 * GRAPH_EDGE), GRAPH_EDGE + layout.y[op] * (height - 2 * GRAPH_EDGE)];
  const where = op => (step.spanOf[op] < 0 ? -1 : step.device[step.spanOf[op]]);
  drawEdges(pen, layout, place, (a, b) => where(a) === where(b), view.colours.soft, 0.25);
  drawEdges(pen, layout, place, (a, b) => where(a) !== where(b), view.colours.found, 0.6);
  for (let op = 0; op < graph.names.length; op++) drawNode(pen, step, op, place(op), where(op));
  legend(byId("devices"), step.devices.map((name, device) => [name, deviceColour(device)]));
}

function drawEdges(pen, layout, place, wanted, colour, alpha) {
  pen.strokeStyle = colour;
  pen.globalAlpha = alpha;
  pen.lineWidth = 1;
  pen.beginPath();
  for (let k = 0; k < layout.edges.length; k += 2) {
    const [a, b] = [layout.edges[k], layout.edges[k + 1]];
    if (!wanted(a, b)) continue;
    pen.moveTo(...place(a));
    pen.lineTo(...place(b));
  }
  pen.stroke();
  pen.globalAlpha = 1;
}

function drawNode(pen, step, op, [x, y], device) {
  const graph = step.graph, dim = view.query !== "" && !graph.found[op];
  pen.globalAlpha = dim ? 0.15 : 1;
  pen.fillStyle = device < 0 ? view.colours.soft : deviceColour(device);
  pen.beginPath();
  pen.arc(x, y, graph.layout.size[op], 0, 7);
  pen.fill();
  pen.globalAlpha = 1;
  if (!view.chosen || view.chosen.op !== op || view.chosen.step.graph !== graph) return;
  pen.strokeStyle = view.colours.text;
  pen.lineWidth = 2;
  pen.stroke();
}

function nodeAt(event) {
  const step = view.steps[0], layout = step.graph.layout, box = byId("graph").getBoundingClientRect();
  const x = event.clientX - box.left - GRAPH_EDGE, y = event.clientY - box.top - GRAPH_EDGE;
  let best = -1, near = 120;
  for (let op = 0; op < layout.x.length; op++) {
    const away = (layout.x[op] * (box.width - 2 * GRAPH_EDGE) - x) ** 2 + (layout.y[op] * (box.height - 2 * GRAPH_EDGE) - y) ** 2;
    if (away < near) { near = away; best = op; }
  }
  return best;
}

function watchGraph() {
  const canvas = byId("graph");
  canvas.addEventListener("pointermove", event => {
    const op = nodeAt(event), step = view.steps[0];
    tip(event, op >= 0 && step.spanOf[op] >= 0 ? briefly(step, step.spanOf[op]) : "");
  });
  canvas.addEventListener("pointerleave", event => tip(event, ""));
  canvas.addEventListener("click", event => { const op = nodeAt(event); if (op >= 0) choose(view.steps[0], op, true); });
}
painters.push(["graph", paintGraph]);
