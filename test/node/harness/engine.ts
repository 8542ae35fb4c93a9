import { fork, type ChildProcess } from 'node:child_process';
import { EventEmitter, once } from 'node:events';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { ensureInstalled } from '../../../scripts/lib/install';
import { Result, type Answer, type RunError } from './result';
import type { Json, Workflow } from './workflow';

/** The two lines of n8n-core that the node runs on: n8n 2.41 and the last of 1.x. */
const ALL_VERSIONS = ['2.41.1', '1.122.48'] as const;
export type EngineVersion = (typeof ALL_VERSIONS)[number];

/** Those to test on: the newer one alone where time is short. */
export const engineVersions: readonly EngineVersion[] = process.env.REDIS_LOCK_NEWEST_ONLY ? ALL_VERSIONS.slice(0, 1) : ALL_VERSIONS;

const BUILT_NODE = resolve(__dirname, '../../../dist/nodes/RedisLock/RedisLock.node.js');
const STOP_MS = 5000;
const HOST = resolve(__dirname, '../host/host.js');

/** The fields of n8n's built-in Redis credential. */
export interface RedisCredential {
  host: string;
  port: number;
  user?: string;
  password?: string;
  database?: number;
  ssl?: boolean;
  disableTlsVerification?: boolean;
}

export interface RunOptions {
  /** What Start gives out; one empty item by default. */
  items?: Array<{ json: Json; binary?: Json }>;
  executionId?: string;
  mode?: 'trigger' | 'manual';
  /** By id; `redis` is the one that nodes use unless they name another. */
  credentials?: Record<string, RedisCredential>;
  /** Deadline of the whole execution in ms since 1970, as n8n sets it from the workflow's Timeout. */
  executionTimeoutTimestamp?: number;
  /** The editor's "Execute step": the run ends behind that node. */
  destinationNode?: string;
  /** Items pinned to nodes, which then do not run; manual runs only. */
  pinData?: Record<string, Array<{ json: Json }>>;
  /** Workflows that this one may call, by their ids. */
  workflows?: Workflow[];
  /** How this n8n tells our node of the end of an execution: by its hooks (default), by its official call only, or not. */
  tellsEnd?: 'officially' | 'not';
}

/** A called workflow's execution. */
export interface Child {
  executionId: string;
  workflowId: string;
  result: Result;
}

type Event = { name: string; node?: string; status?: string };

let executionIds = 1000;
let runIds = 0;

/** An execution that has been started. */
export class Run {
  readonly events: Event[] = [];
  /** Executions of called workflows that have ended. */
  readonly children: Child[] = [];
  readonly finished: Promise<Result>;
  private readonly happened = new EventEmitter();
  private isDone = false;

  constructor(
    private readonly host: ChildProcess,
    private readonly id: number,
    private readonly workflow: Workflow,
    readonly executionId: string,
    private readonly workflows: Workflow[],
  ) {
    this.happened.setMaxListeners(0);
    this.finished = once(this.happened, 'done').then(([answer]) => this.resultOf(answer as Answer));
    // Whoever awaits it is told; a test that has failed before needs no second complaint.
    this.finished.catch(() => {});
  }

  /** Resolves when the node has begun (`holding`: when a `hold` node waits for `letGo`), now or already. */
  async reached(node: string, event: 'nodeExecuteBefore' | 'nodeExecuteAfter' | 'holding' = 'nodeExecuteBefore') {
    while (!this.events.some((each) => each.name === event && each.node === node)) {
      const ended = this.finished.then((result) => {
        throw new Error(`The run ended (${result.status}) and never reached ${node}: ${result.errorText}`);
      });
      await Promise.race([once(this.happened, 'event'), ended]);
    }
  }

  /** Lets a `hold` node go on, as soon as it waits. */
  async letGo(node: string) {
    await this.reached(node, 'holding');
    this.host.send({ type: 'letGo', id: this.id, node });
  }

  /** What n8n does when a user presses Stop. */
  cancel() {
    this.host.send({ type: 'cancel', id: this.id });
  }

  /** @internal A message of the host about this run. */
  receive(message: { type: string; answer?: Answer; failure?: RunError; executionId?: string; workflowId?: string } & Event) {
    if (message.type === 'child') return this.addChild(message.executionId!, message.workflowId!, message.answer);
    if (message.type === 'event') {
      this.events.push(message);
      this.happened.emit('event');
    } else if (message.failure) {
      this.fail(new Error(`The engine refused the run: ${message.failure.message}`));
    } else {
      this.isDone = true;
      this.happened.emit('done', message.answer);
    }
  }

  private addChild(executionId: string, workflowId: string, answer: Answer | undefined) {
    const called = this.workflows.find(({ id }) => id === workflowId);
    if (called && answer) this.children.push({ executionId, workflowId, result: new Result(called, answer, executionId, []) });
    this.happened.emit('event');
  }

  /** Resolves when so many called workflows have ended. */
  async called(count: number) {
    while (this.children.length < count) await once(this.happened, 'event');
  }

  /** @internal */
  fail(error: Error) {
    // Of one that is done only called workflows may still run.
    if (this.isDone) return;
    this.isDone = true;
    this.happened.emit('error', error);
  }

  private resultOf(answer: Answer) {
    const began = this.events.filter(({ name }) => name === 'nodeExecuteBefore');
    return new Result(
      this.workflow,
      answer,
      this.executionId,
      began.map(({ node }) => node!),
    );
  }
}

/** One n8n process: runs workflows through the real WorkflowExecute, several at the same time. */
export class Engine {
  /** Rejections and exceptions that nobody handled in that process. */
  readonly unhandled: string[] = [];
  private readonly runs = new Map<number, Run>();

  constructor(
    private readonly host: ChildProcess,
    private readonly userFolder: string,
    private readonly credential: RedisCredential,
    private readonly version: EngineVersion,
  ) {
    host.on('message', (message: { type: string; id: number; error: string; name: string }) => {
      if (message.type === 'unhandled') return void this.unhandled.push(message.error);
      this.runs.get(message.id)?.receive(message);
    });
    host.once('exit', (code, signal) => {
      for (const run of this.runs.values()) run.fail(new Error(`The engine ended (${signal ?? code})`));
    });
  }

  get pid() {
    return this.host.pid!;
  }

  /** Starts a workflow and returns at once. */
  start(workflow: Workflow, options: RunOptions = {}): Run {
    return this.send(workflow, options, { startNode: 'Start', items: options.items ?? [{ json: {} }] });
  }

  /** Runs a workflow to its end. */
  async run(workflow: Workflow, options?: RunOptions): Promise<Result> {
    return await this.start(workflow, options).finished;
  }

  /** What a user's "Retry" does with a failed execution: the same data, a new execution id. */
  async retry(workflow: Workflow, failed: Result, options: RunOptions = {}): Promise<Result> {
    return await this.startRetry(workflow, failed, options).finished;
  }

  /** The same, and returns at once. */
  startRetry(workflow: Workflow, failed: Result, options: RunOptions = {}): Run {
    return this.send(workflow, options, { mode: 'retry', continueFrom: failed.data });
  }

  /** Goes on with an execution that a `wait` node suspended, under the same execution id. */
  async resume(workflow: Workflow, suspended: Result, options: RunOptions = {}): Promise<Result> {
    return await this.startResumed(workflow, suspended, options).finished;
  }

  /**
   * Goes on with an execution whose sub-workflow has ended after a Wait. n8n 2 puts its items in the place of those that its
   * caller's node had, and runs the caller on; n8n 1 runs it on with what it had.
   */
  async resumeWith(workflow: Workflow, suspended: Result, items: Array<{ json: Json }>, options: RunOptions = {}): Promise<Result> {
    const data = JSON.parse(suspended.data) as { executionData: { nodeExecutionStack: Array<{ data: { main: unknown } }> } };
    if (!this.version.startsWith('1.')) data.executionData.nodeExecutionStack[0].data.main = [items];
    const { executionId } = suspended;
    return await this.send(workflow, { executionId, ...options }, { continueFrom: JSON.stringify(data) }).finished;
  }

  /** The same, and returns at once. */
  startResumed(workflow: Workflow, suspended: Result, options: RunOptions = {}): Run {
    const { executionId } = suspended;
    return this.send(workflow, { executionId, ...options }, { continueFrom: suspended.data });
  }

  /** What that process has open, and its heap after a collection. */
  async usage(): Promise<{ timers: number; sockets: number; heapUsed: number }> {
    this.host.send({ type: 'usage', id: -1 });
    for (;;) {
      const [message] = (await once(this.host, 'message')) as [{ type: string; timers: number; sockets: number; heapUsed: number }];
      if (message.type === 'usage') return message;
    }
  }

  /** Stops that process, lets it go on, or kills it. */
  signal(name: 'SIGSTOP' | 'SIGCONT' | 'SIGKILL') {
    this.host.kill(name);
  }

  /** @throws when anything was left unhandled in that process */
  async stop() {
    if (this.host.exitCode === null && this.host.signalCode === null) {
      this.host.disconnect();
      const kill = setTimeout(() => this.host.kill('SIGKILL'), STOP_MS);
      await once(this.host, 'exit');
      clearTimeout(kill);
    }
    rmSync(this.userFolder, { recursive: true, force: true });
    if (this.unhandled.length > 0) throw new Error(`Unhandled in the engine:\n${this.unhandled.join('\n')}`);
  }

  private send(workflow: Workflow, options: RunOptions, more: Json): Run {
    const { executionId = String(++executionIds), mode = 'trigger', executionTimeoutTimestamp, workflows, tellsEnd } = options;
    const { destinationNode, pinData } = options;
    const credentials = { redis: this.credential, ...options.credentials };
    const request = { workflow, executionId, mode, executionTimeoutTimestamp, credentials, workflows, tellsEnd, destinationNode, pinData, ...more };

    const run = new Run(this.host, ++runIds, workflow, executionId, workflows ?? []);
    this.runs.set(runIds, run);
    this.host.send({ type: 'run', id: runIds, request });
    return run;
  }
}

/**
 * Starts a process with one line of n8n-core and the built node.
 *
 * @param credential what nodes get as their Redis credential unless a run says otherwise
 */
export async function startEngine(version: EngineVersion, credential: RedisCredential): Promise<Engine> {
  if (!existsSync(BUILT_NODE)) throw new Error('The node is not built: run `npm run build` first');
  const folder = await ensureInstalled(resolve(__dirname, '../engines', version), { label: `n8n-core ${version}` });
  const userFolder = mkdtempSync(join(tmpdir(), 'redis-lock-engine-'));
  const host = fork(HOST, [folder, BUILT_NODE], {
    execArgv: ['--expose-gc'],
    env: {
      ...process.env,
      N8N_USER_FOLDER: userFolder,
      // The same in all of them, as among the workers of one n8n: they then share an instance id.
      N8N_ENCRYPTION_KEY: 'the-key-of-all-test-engines',
      N8N_LOG_LEVEL: 'silent',
      N8N_DIAGNOSTICS_ENABLED: 'false',
      NODE_OPTIONS: '',
    },
  });
  await new Promise<void>((ready, fail) => {
    host.once('message', () => ready());
    host.once('error', fail);
    host.once('exit', (code) => fail(new Error(`The engine ended with ${code} while it loaded`)));
  });
  return new Engine(host, userFolder, credential, version);
}
