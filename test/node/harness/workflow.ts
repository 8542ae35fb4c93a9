/** Workflows for tests, written the way one would draw them: nodes, and wires between them. */

export type Json = Record<string, unknown>;

/** The settings of n8n's own Settings tab that a test may change, and the credential to use. */
export interface NodeSettings {
  onError?: 'stopWorkflow' | 'continueRegularOutput' | 'continueErrorOutput';
  alwaysOutputData?: boolean;
  retryOnFail?: boolean;
  maxTries?: number;
  /** n8n reads 0 as its default of 1000 ms. */
  waitBetweenTries?: number;
  executeOnce?: boolean;
  /** What old workflows have in the place of `onError`. */
  continueOnFail?: boolean;
  disabled?: boolean;
  /** Id of the credential among those that the run is given. */
  credential?: string;
}

export interface WorkflowNode extends Omit<NodeSettings, 'credential'> {
  id: string;
  name: string;
  type: string;
  typeVersion: number;
  position: [number, number];
  parameters: Json;
  credentials?: Record<string, { id: string; name: string }>;
}

export interface Workflow {
  id: string;
  name: string;
  nodes: WorkflowNode[];
  connections: Record<string, { main: Array<Array<{ node: string; type: 'main'; index: number }>> }>;
  settings: Json;
}

const REDIS_LOCK = 'n8n-nodes-redis-lock.redisLock';

const OUTPUTS: Record<string, string[]> = {
  acquire: ['Acquired', 'Busy', 'Timed Out'],
  acquireOnce: ['Acquired', 'Busy', 'Timed Out', 'Done Before'],
  heartbeat: ['Alive', 'Lost'],
  release: ['Released', 'Not Held'],
  runWorkflow: ['Done', 'Busy', 'Timed Out'],
  steal: ['Stolen', 'Not Stolen'],
  getStatus: ['Status'],
  'test.loop': ['Done', 'Loop'],
};

/** Position of a node's output; the Error output comes behind all others. */
export function outputIndex(node: WorkflowNode, name: string): number {
  const names = OUTPUTS[String(node.parameters.operation ?? node.type)] ?? ['Output'];
  const index = [...names, 'Error'].indexOf(name);
  if (index < 0) throw new Error(`${node.name} has no output "${name}", but ${names.join(', ')}, Error`);
  return index;
}

function node(name: string, type: string, parameters: Json, settings: NodeSettings = {}): WorkflowNode {
  const { credential = 'redis', ...rest } = settings;
  return {
    id: name,
    name,
    type,
    typeVersion: 1,
    position: [0, 0],
    parameters,
    ...(type === REDIS_LOCK && { credentials: { redis: { id: credential, name: credential } } }),
    ...rest,
  };
}

const redisLock =
  (operation: string) =>
  (name: string, parameters: Json, settings?: NodeSettings): WorkflowNode =>
    node(name, REDIS_LOCK, { operation, ...parameters }, settings);

/** Acquire, Acquire Once and Steal as a user has them: the lock ends with the execution. */
export const careful = { acquire: redisLock('acquire'), acquireOnce: redisLock('acquireOnce'), steal: redisLock('steal') };
const outliving =
  (builder: typeof careful.acquire) =>
  (name: string, parameters: Json, settings?: NodeSettings): WorkflowNode =>
    builder(name, { ...parameters, options: { releaseOnEnd: 'never', ...(parameters.options as Json) } }, settings);
/** The same, with locks that outlive the run, so that a test can look at what it has done. */
export const acquire = outliving(careful.acquire);
export const acquireOnce = outliving(careful.acquireOnce);
export const steal = outliving(careful.steal);
export const heartbeat = redisLock('heartbeat');
export const release = redisLock('release');
export const runWorkflow = redisLock('runWorkflow');
export const getStatus = redisLock('getStatus');

/** Passes its items on. A name that only the wires mention is such a node. */
export const pass = (name: string) => node(name, 'test.pass', {});
/** Puts other JSON in the place of all that its items were. */
export const replace = (name: string, json: Json) => node(name, 'test.replace', { json: JSON.stringify(json) });
/** Fails, but not in a retry. */
export const boom = (name: string, settings?: NodeSettings) => node(name, 'test.boom', {}, settings);
/** Goes on when the test says `run.letGo(name)`. */
export const hold = (name: string) => node(name, 'test.hold', {});
/** Suspends the execution, which a test then resumes by `engine.resume`. */
export const wait = (name: string, parameters: { seconds?: number } = {}) => node(name, 'test.wait', parameters);
/** Calls another workflow, as n8n's Execute Workflow does. */
export const call = (name: string, workflowId: string, parameters: { mode?: 'once' | 'each'; wait?: boolean } = {}) =>
  node(name, 'test.call', { workflowId, ...parameters });
/** Loop Over Items, one by one: outputs Done and Loop. */
export const loop = (name: string) => node(name, 'test.loop', {});

/**
 * A workflow that begins at the node `Start`, which gives out the items of the run.
 *
 * @param wires chains such as `Start -> Acquire -> Work` or `Acquire:Busy -> Losers`; without a name a wire
 *   leaves through a node's first output
 */
export function workflow(nodes: WorkflowNode[], ...wires: string[]): Workflow {
  const all = new Map([node('Start', 'test.start', {}), ...nodes].map((each) => [each.name, each]));
  const connections: Workflow['connections'] = {};

  for (const wire of wires) {
    const steps = wire.split('->').map((step) => step.trim().split(':'));
    for (const [name] of steps) if (!all.has(name)) all.set(name, pass(name));
    for (let i = 0; i + 1 < steps.length; i++) {
      const [from, output] = steps[i];
      const index = output === undefined ? 0 : outputIndex(all.get(from)!, output);
      const main = (connections[from] ??= { main: [] }).main;
      while (main.length <= index) main.push([]);
      main[index].push({ node: steps[i + 1][0], type: 'main', index: 0 });
    }
  }
  const placed = [...all.values()].map((each, i) => ({ ...each, position: [i * 200, 0] as [number, number] }));
  return { id: 'wf-1', name: 'Test workflow', nodes: placed, connections, settings: { executionOrder: 'v1' } };
}

/** The same workflow under an id by which others call it. */
export const named = (id: string, flow: Workflow): Workflow => ({ ...flow, id, name: `Workflow ${id}` });

/** The same workflow with settings of its own. */
export const withSettings = (flow: Workflow, settings: Json): Workflow => ({ ...flow, settings: { ...flow.settings, ...settings } });
