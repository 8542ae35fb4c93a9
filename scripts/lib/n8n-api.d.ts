export interface ExecutionSummary {
  id: string;
  status: string;
  startedAt: string;
  stoppedAt: string | null;
}

/** What one node did in one of its runs. */
export interface NodeRun {
  executionStatus?: string;
  /** How long it took, in ms. */
  executionTime: number;
  error?: { message: string; description?: string };
  data?: { main: Array<Array<{ json: Record<string, unknown>; pairedItem?: unknown }> | null> };
}

export interface Execution extends ExecutionSummary {
  data: {
    resultData: {
      runData: Record<string, NodeRun[]>;
      error?: { message: string; description?: string };
      lastNodeExecuted?: string;
    };
  };
}

export interface CredentialReference {
  id: string;
  name: string;
}

/** What a person does in n8n's editor, done through the same addresses. */
export class N8nApi {
  constructor(url: string);
  url: string;
  cookie: string;
  send(method: string, route: string, body?: unknown): Promise<Response>;
  request(method: string, route: string, body?: unknown): Promise<unknown>;
  createCredential(credential: {
    name: string;
    type: string;
    data: Record<string, unknown>;
  }): Promise<CredentialReference>;
  createWorkflow(workflow: {
    name: string;
    nodes: unknown[];
    connections: unknown;
    settings?: unknown;
  }): Promise<string>;
  /** Makes a workflow live, and waits until its webhooks answer. */
  activate(id: string): Promise<void>;
  waitForWebhook(path: string, method: string): Promise<void>;
  deactivate(id: string): Promise<void>;
  /** Newest first, running ones included. */
  executions(workflowId: string): Promise<ExecutionSummary[]>;
  execution(id: string): Promise<Execution>;
  /** What the editor's Stop button does. */
  stopExecution(id: string): Promise<unknown>;
  nodeTypes(): Promise<Array<{ name: string; displayName: string; outputNames?: string[]; outputs?: unknown }>>;
}

/** Signs in as the owner, whom it sets up at the first time. */
export function signIn(url: string): Promise<N8nApi>;

export const OWNER: { email: string; firstName: string; lastName: string; password: string };
