/**
 * The figures that matter, from a report of run.mjs: ours beside the floor and the best of the others. A ratio is taken
 * in each round, of what was measured in that same round, and the median over the rounds is shown.
 */
import { max, median, min, spread } from './stats.mjs';

const HANDOFF = (waiters, processes, csMs) =>
  `Contended hand-off | waiters=${waiters} processes=${processes} csMs=${csMs}`;
const UNCONTENDED = 'Uncontended acquire + release | ';

/** `better` says which of the others is the best; `limit` is what we ask of ourselves, of the value or the ratio. */
const FIGURES = [
  {
    label: 'one caller, pairs/s',
    short: 'nobody waits, one caller: acquire + release, per second',
    in: UNCONTENDED,
    field: 'seq pairs/s',
    floor: 'floor-raw',
    better: 'higher',
    ratio: 0.85,
  },
  {
    label: '64 tasks, pairs/s',
    short: 'the same, 64 tasks at once',
    in: UNCONTENDED,
    field: '64 tasks pairs/s',
    floor: 'floor-raw',
    better: 'higher',
    ratio: 0.9,
  },
  ...[
    [2, 1, 1],
    [2, 1, 10],
    [2, 2, 1],
    [2, 2, 10],
    [16, 4, 1],
    [16, 4, 10],
  ].map(([waiters, processes, csMs]) => ({
    label: `hand-off median ms, ${waiters} waiters, ${processes} process${processes > 1 ? 'es' : ''}, ${csMs} ms inside`,
    in: HANDOFF(waiters, processes, csMs),
    field: 'hand-off median ms',
    floor: 'floor-handoff',
    ratio: 1.3,
    short: waiters === 16 && csMs === 1 && 'release to next entry, 16 waiters in 4 processes: median ms',
  })),
  ...[1, 10].map((csMs) => ({
    label: `hand-off p99 ms, 128 waiters, 4 processes, ${csMs} ms inside`,
    in: HANDOFF(128, 4, csMs),
    field: 'hand-off p99 ms',
    floor: 'floor-handoff',
    ratio: 1.5,
    short: csMs === 1 && 'the same with 128 waiters: 99th percentile, ms',
  })),
  ...[16, 128].map((waiters) => ({
    label: `executed commands per acquire, ${waiters} waiters, 4 processes`,
    in: HANDOFF(waiters, 4, 1),
    field: 'commands/acquire',
    floor: 'floor-handoff',
    most: 40,
  })),
  {
    // Join, claim, release; of the gate its release, and of each process the look after it began to listen.
    label: 'scripts per acquire, 128 waiters, 4 processes (the gate, and one look of each process, included)',
    in: HANDOFF(128, 4, 1),
    field: 'scripts/acquire',
    floor: 'floor-handoff',
    most: 3 + 5 / 128,
    onlyOurs: true,
  },
  {
    label: 'order inversions %, worst variant',
    short: 'pairs served out of order, worst case, %',
    in: /^Contended/,
    worst: true,
    field: 'inversions %',
    floor: 'floor-handoff',
    most: 0,
  },
  {
    label: 'not served + violations + lost updates',
    in: /^Contended/,
    sum: true,
    field: ['not served', 'violations', 'lost updates'],
    floor: 'floor-handoff',
    most: 0,
  },
  {
    label: 'crash: first entry after expiry, ms',
    short: 'holder killed: first entry after its TTL, ms',
    in: /^Crash/,
    field: 'first entry after expiry ms',
    most: 20,
  },
  {
    label: '1,000 parked: Redis commands/s',
    short: '1,000 waiting: Redis commands per second',
    in: /parked/,
    field: 'redis commands/s',
    floor: 'floor-handoff',
    most: 5,
  },
  {
    label: '1,000 time-outs at once: latest, ms',
    short: '1,000 time-outs at once: the latest, ms late',
    in: /parked/,
    field: 'timeout lateness max ms',
    floor: 'floor-handoff',
    most: 50,
  },
  {
    label: 'of 100 keys released then: held by nobody',
    short: '100 locks released as their waiters time out: left held by nobody',
    in: /time-outs/,
    field: 'held by nobody',
    floor: 'floor-handoff',
    most: 0,
  },
];

const isNumber = (value) => typeof value === 'number' && Number.isFinite(value);

/** One number a round, of one adapter; undefined where there is none. */
function valuesOf(report, figure, adapter) {
  const headings = Object.keys(report.results).filter((heading) =>
    figure.in instanceof RegExp ? figure.in.test(heading) : heading === figure.in,
  );
  const fields = [figure.field].flat();
  return Array.from({ length: report.rounds }, (_, round) => {
    const samples = headings.map((heading) => report.results[heading][adapter]?.[round]).filter(Boolean);
    const values = samples.flatMap((sample) => fields.map((field) => sample[field])).filter(isNumber);
    if (values.length === 0) return undefined;
    if (figure.sum) return values.reduce((a, b) => a + b, 0);
    return max(values);
  });
}

const known = (values) => values.filter(isNumber);
/** 0 / 0 is no ratio. */
const ratios = (values, floor) =>
  known(values.map((value, round) => (isNumber(value) && floor[round] > 0 ? value / floor[round] : undefined)));

export function figures(report) {
  const names = (test) => report.adapters.filter(test).map(({ name }) => name);
  const ours = names(({ traits }) => traits.ours);
  const peers = names(({ traits }) => !traits.ours && !traits.floor);
  return FIGURES.map((figure) => {
    const floor = figure.floor ? valuesOf(report, figure, figure.floor) : [];
    const of = (name) => {
      const values = valuesOf(report, figure, name);
      return { name, values: known(values), ratios: figure.ratio ? ratios(values, floor) : [] };
    };
    const better = (a, b) =>
      figure.better === 'higher' ? median(b.values) - median(a.values) : median(a.values) - median(b.values);
    const measured = ours.map(of).filter(({ values }) => values.length > 0);
    const asked = figure.ratio ?? figure.most;
    const judged = measured.map(({ values, ratios: r }) => (figure.ratio ? median(r) : median(values)));
    const met = figure.better === 'higher' ? min(judged) >= asked : max(judged) <= asked;
    return {
      label: figure.label,
      short: figure.short || undefined,
      asked: `${figure.better === 'higher' ? '≥' : '≤'} ${Number(asked.toFixed(2))}${figure.ratio ? ' × floor' : ''}`,
      ours: measured,
      floor: known(floor),
      peer: figure.onlyOurs
        ? undefined
        : peers
            .map(of)
            .filter(({ values }) => values.length > 0)
            .sort(better)[0],
      met: judged.length === 0 || judged.some((value) => value === null) ? undefined : met,
    };
  });
}

/** The figures as a Markdown table: values, and beneath the ratios to the floor of the same rounds. */
export function figuresTable(report) {
  // With --only and --scenario some were not measured.
  const rows = figures(report).filter(({ ours, floor }) => ours.length > 0 || floor.length > 0);
  const names = [...new Set(rows.flatMap(({ ours }) => ours.map(({ name }) => name)))];
  const cell = (entry) =>
    entry ? `${spread(entry.values)}${entry.ratios.length ? ` = ${spread(entry.ratios)} ×` : ''}` : '-';
  const lines = [
    `| figure | asked | ${names.join(' | ')} | floor | best of the others | met |`,
    `|---|---|${names.map(() => '---:|').join('')}---:|---:|---|`,
  ];
  for (const { label, asked, ours, floor, peer, met } of rows) {
    const own = names.map((name) => cell(ours.find((entry) => entry.name === name)));
    const best = peer ? `${cell(peer)} (${peer.name})` : '-';
    lines.push(
      `| ${label} | ${asked} | ${own.join(' | ')} | ${spread(floor)} | ${best} | ${met === undefined ? '-' : met ? 'yes' : '**no**'} |`,
    );
  }
  return lines.join('\n');
}

/** The part of the figures that a newcomer wants to see. */
export function shortTable(report) {
  const value = (values) => spread([median(values)].filter(isNumber), 1);
  const lines = [
    '| median of the rounds | Redis Lock | with the index by execution | floor | best of the others |',
    '|---|---:|---:|---:|---:|',
  ];
  for (const { short, ours, floor, peer } of figures(report)) {
    if (!short) continue;
    const [plain, indexed] = ['ours', 'ours-with-index'].map((name) =>
      value(ours.find((entry) => entry.name === name)?.values ?? []),
    );
    const best = peer ? `${value(peer.values)} (${peer.name})` : '-';
    lines.push(`| ${short} | ${plain} | ${indexed} | ${value(floor)} | ${best} |`);
  }
  return lines.join('\n');
}
