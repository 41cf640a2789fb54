// Puts the page together: what is chosen above the timeline, and the first drawing.
const NO_SECOND = "none";

function pickSteps() {
  const first = data.steps[Number(byId("first").value)], second = byId("second").value;
  view.steps = second === NO_SECOND || data.steps[Number(second)] === first ? [first] : [first, data.steps[Number(second)]];
  if (view.chosen && !view.steps.some(step => step.graph === view.chosen.step.graph)) view.chosen = null;
  const faults = view.steps.filter(step => step.fault);
  byId("fault").textContent = faults.map(step => `${step.label}: ${step.fault}`).join(" ");
  legend(byId("kinds"), first.graph.kinds.map((name, kind) => [name, kindColour(kind)]));
  memoryTold();
  listModules(first.graph);
  search(byId("search").value);
  showAll();
  redraw("timeline", "memory", "graph", "list", "details");
}

function listModules(graph) {
  const names = new Set();
  for (const name of graph.modules) name.split(".").forEach((_, k, parts) => names.add(parts.slice(0, k + 1).join(".")));
  byId("modules").replaceChildren(...[...names].slice(0, 2000).map(name => { const option = element("option"); option.value = name; return option; }));
}

function fillChoices() {
  const options = () => data.steps.map((step, k) => { const option = element("option", step.label); option.value = String(k); return option; });
  byId("first").replaceChildren(...options());
  const none = element("option", "nothing");
  none.value = NO_SECOND;
  byId("second").replaceChildren(none, ...options());
  byId("second").value = data.steps.length > 1 && data.beside ? "1" : NO_SECOND;
  byId("besides").hidden = data.steps.length < 2;
  byId("choices").hidden = data.steps.length < 2;
}

function watchControls() {
  for (const id of ["first", "second"]) byId(id).addEventListener("change", pickSteps);
  let waiting = 0;
  byId("search").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(() => search(byId("search").value), 60); });
  byId("path").addEventListener("change", event => { view.path = event.target.checked; redraw("timeline"); });
  byId("arrows").addEventListener("change", event => { view.arrows = event.target.checked; redraw("timeline"); });
  byId("in").addEventListener("click", () => zoom(1 / 1.6));
  byId("out").addEventListener("click", () => zoom(1.6));
  byId("all").addEventListener("click", showAll);
  addEventListener("resize", () => redraw("timeline", "memory", "graph"));
}

// On paper nothing waits for a frame.
function drawNow() {
  readColours();
  if (view.steps.length) legend(byId("kinds"), view.steps[0].graph.kinds.map((name, kind) => [name, kindColour(kind)]));
  redraw("timeline", "memory", "graph");
  drawFrame();
}

readColours();
fillChoices();
watchControls();
watchTimeline();
watchGraph();
pickSteps();
themed.push(drawNow);
window.viewer = { data, view, show, showAll, search: setQuery, choose, drawFrame };
